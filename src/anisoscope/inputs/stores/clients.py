"""The clients of object stores: pyarrow's own file systems and the Hub's, set up by the usual environment variables.

| URL | credentials and place |
|---|---|
| `s3://bucket/key` | AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_PROFILE, roles; AWS_REGION; AWS_ENDPOINT_URL |
| `gs://bucket/key` | GOOGLE_APPLICATION_CREDENTIALS, gcloud; STORAGE_EMULATOR_HOST |
| `az://container/key` | AZURE_STORAGE_ACCOUNT, AZURE_STORAGE_KEY or _SAS_TOKEN; AZURE_STORAGE_ENDPOINT |
| `hf://datasets/owner/name/file` | HF_TOKEN; HF_ENDPOINT |

AWS_NO_SIGN_REQUEST and GS_NO_SIGN_REQUEST read public buckets without credentials. `abfs://container@account…/key` is
Azure too. Transient errors (a connection that breaks, 500, 503 SlowDown) are tried again by the clients themselves.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from functools import lru_cache
from typing import Any

from anisoscope.errors import UsageError

ATTEMPTS = 5
_URL = re.compile(r"(s3|gs|az|abfss?|hf)://(.*)", re.DOTALL)
_ACCOUNT = re.compile(r"([^/@]+)@([^./]+)[^/]*")  # container@account.dfs.core.windows.net


def is_url(place: object) -> bool:
    """Whether this names an object of a store.

    >>> is_url("s3://bucket/x.npy"), is_url("hf:wikitext"), is_url("x.npy")
    (True, False, False)
    """
    return isinstance(place, str) and _URL.fullmatch(place) is not None


def client(url: str) -> tuple[Any, str]:
    """The file system of a URL, and the path within it; nothing is asked of the store yet."""
    found = _URL.fullmatch(url)
    if found is None or not found[2].strip("/"):
        raise UsageError("not a URL of an object", got=url, expected="s3://, gs://, az:// or hf://, with a bucket")
    scheme, path, account = found[1], found[2].rstrip("/"), ""
    if scheme.startswith("abfs") and (named := _ACCOUNT.match(path)):
        path, account = named[1] + path[named.end() :], named[2]
    bucket = path.partition("/")[0]
    # What decides which store it is, so that another one is opened when it changes.
    known = tuple(sorted((k, v) for k, v in os.environ.items() if k.startswith(("AWS_", "GOOGLE_", "GS_", "AZURE_"))))
    return _opened(scheme, bucket if scheme == "s3" else "", account, known), path


@lru_cache(maxsize=16)
def _opened(scheme: str, bucket: str, account: str, known: tuple[tuple[str, str], ...]) -> Any:
    return _CLIENTS[scheme](bucket, account)


def _s3(bucket: str, account: str) -> Any:
    from pyarrow import fs

    endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
    region = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
    if region is None and endpoint is None:
        region = fs.resolve_s3_region(bucket)
    return fs.S3FileSystem(
        endpoint_override=endpoint,
        region=region or "us-east-1",
        anonymous=_yes("AWS_NO_SIGN_REQUEST"),
        retry_strategy=fs.AwsStandardS3RetryStrategy(max_attempts=ATTEMPTS),
        connect_timeout=10,
        request_timeout=60,
    )


def _gcs(bucket: str, account: str) -> Any:
    from datetime import timedelta

    from pyarrow import fs

    emulator = os.environ.get("STORAGE_EMULATOR_HOST")
    scheme, _, host = emulator.rpartition("://") if emulator else ("", "", None)
    options: dict[str, Any] = (
        {} if host is None else {"endpoint_override": host.rstrip("/"), "scheme": scheme or "http"}
    )
    anonymous = host is not None or _yes("GS_NO_SIGN_REQUEST")
    return fs.GcsFileSystem(anonymous=anonymous, retry_time_limit=timedelta(seconds=60), **options)


def _azure(container: str, account: str) -> Any:
    from pyarrow import fs

    account = account or os.environ.get("AZURE_STORAGE_ACCOUNT", "")
    if not account:
        raise UsageError("no storage account is named", do="set AZURE_STORAGE_ACCOUNT, and AZURE_STORAGE_KEY")
    options: dict[str, Any] = {"account_key": os.environ.get("AZURE_STORAGE_KEY")}
    options |= {"sas_token": os.environ.get("AZURE_STORAGE_SAS_TOKEN")}
    if endpoint := os.environ.get("AZURE_STORAGE_ENDPOINT"):
        scheme, _, authority = endpoint.rstrip("/").rpartition("://")
        options |= {f"{kind}_storage_authority": authority for kind in ("blob", "dfs")}
        options |= {f"{kind}_storage_scheme": scheme or "https" for kind in ("blob", "dfs")}
    return fs.AzureFileSystem(account, **{name: value for name, value in options.items() if value})


def _hub(bucket: str, account: str) -> Any:
    from huggingface_hub import HfFileSystem
    from pyarrow import fs

    return fs.PyFileSystem(fs.FSSpecHandler(HfFileSystem(skip_instance_cache=True, use_listings_cache=False)))


def _yes(variable: str) -> bool:
    return os.environ.get(variable, "").lower() in ("1", "yes", "true", "on")


_CLIENTS: dict[str, Callable[[str, str], Any]] = {
    "s3": _s3,
    "gs": _gcs,
    "az": _azure,
    "abfs": _azure,
    "abfss": _azure,
    "hf": _hub,
}
