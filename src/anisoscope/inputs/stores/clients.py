"""The clients of object stores: pyarrow's own file systems and the Hub's, set up by the usual environment variables.

| URL | credentials and place |
|---|---|
| `s3://bucket/key` | AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_PROFILE, roles; AWS_REGION; AWS_ENDPOINT_URL |
| `gs://bucket/key` | GOOGLE_APPLICATION_CREDENTIALS, gcloud; STORAGE_EMULATOR_HOST |
| `az://container/key` | AZURE_STORAGE_ACCOUNT, AZURE_STORAGE_KEY or _SAS_TOKEN; AZURE_STORAGE_ENDPOINT |
| `hf://datasets/owner/name/file` | HF_TOKEN; HF_ENDPOINT |

AWS_NO_SIGN_REQUEST and GS_NO_SIGN_REQUEST read public buckets without credentials. `abfs://container@account…/key` is
Azure too. Transient errors (a connection that breaks, 500, 503 SlowDown) are tried again by the clients themselves; the
Hub's does so for what it downloads and not for what it looks up, so `ask` does.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable
from functools import lru_cache
from typing import Any, TypeVar

from anisoscope.errors import UsageError

HEADER = 1 << 16  # bytes asked for where only the beginning or the end of an object is looked at
ATTEMPTS = 5
PATIENCE = 60  # seconds of trying again, where a client counts time instead
Answer = TypeVar("Answer")
_URL = re.compile(r"(s3|gs|az|abfss?|hf)://(.*)", re.DOTALL)
_VARIABLES = ("AWS_", "GOOGLE_", "GS_", "STORAGE_", "AZURE_", "HF_")
_ACCOUNT = re.compile(r"([^/@]+)@([^./]+)[^/]*")  # container@account.dfs.core.windows.net


def is_url(place: object) -> bool:
    """Whether this names an object of a store.

    >>> is_url("s3://bucket/x.npy"), is_url("hf:wikitext"), is_url("x.npy")
    (True, False, False)
    """
    return isinstance(place, str) and _URL.fullmatch(place) is not None


def settings(url: str) -> dict[str, str]:
    """The variables that say where a store is and who is asking: what to check when it does not answer."""
    place, credentials = _SETTINGS[url.partition("://")[0].replace("abfss", "az").replace("abfs", "az")]
    return {"place": place, "credentials": credentials}


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
    known = tuple(sorted((k, v) for k, v in os.environ.items() if k.startswith(_VARIABLES)))
    system = _opened(scheme, bucket if scheme == "s3" else "", account, known)
    if scheme == "hf":
        system.handler.fs.invalidate_cache()  # it would tell of files that have changed meanwhile
    return system, path


def ask(url: str, question: Callable[[Any, str], Answer]) -> Answer:
    """The answer of a URL's client; a Hub that fails for a moment is asked again."""
    system, path = client(url)
    for attempt in range(1, ATTEMPTS):
        try:
            return question(system, path)
        except OSError as problem:
            status = getattr(getattr(problem, "response", None), "status_code", 0)
            if status < 500:
                raise
            time.sleep(0.1 * 2**attempt)
    return question(system, path)


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
    return fs.GcsFileSystem(anonymous=anonymous, retry_time_limit=timedelta(seconds=PATIENCE), **options)


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

    options = {"endpoint": os.environ.get("HF_ENDPOINT"), "block_size": HEADER, "skip_instance_cache": True}
    return fs.PyFileSystem(fs.FSSpecHandler(HfFileSystem(**options)))


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

_SETTINGS = {
    "s3": (
        "the bucket, the network, AWS_ENDPOINT_URL and AWS_REGION",
        "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or set AWS_NO_SIGN_REQUEST=1 for a public bucket",
    ),
    "gs": (
        "the bucket, the network and STORAGE_EMULATOR_HOST",
        "GOOGLE_APPLICATION_CREDENTIALS, or set GS_NO_SIGN_REQUEST=1 for a public bucket",
    ),
    "az": (
        "the container, the network, AZURE_STORAGE_ACCOUNT and AZURE_STORAGE_ENDPOINT",
        "AZURE_STORAGE_ACCOUNT and AZURE_STORAGE_KEY or AZURE_STORAGE_SAS_TOKEN",
    ),
    "hf": ("the repository, the network and HF_ENDPOINT", "HF_TOKEN"),
}
