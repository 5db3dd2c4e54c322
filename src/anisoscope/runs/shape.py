"""What a manifest looks like: a checksum that matches says nothing about who wrote it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from anisoscope.errors import StoreError

_KINDS: dict[str, tuple[Any, ...]] = {  # of a field, and of the values in it
    "settings": (dict,),
    "rows": (int,),
    "files": (dict, str),
    "inputs": (dict, dict),
    "protocol": (dict,),
    "data": (dict,),
    "model": (dict,),
    "notes": (list, str),
    "verdict": (str | dict | None,),
    "verdicts": (list, dict),
    "about": (dict, dict),
    "in_memory": (list, str),
    "versions": (dict,),
    "shard": (str | None,),
    "remarks": (list, str),
    "seconds": (int | float | None,),
}
_NOT_ALWAYS = ("verdicts", "about", "in_memory", "versions", "shard", "remarks", "seconds")


def check_shape(manifest: Mapping[str, Any], path: Path, do: str) -> None:
    """Refuse a manifest that no version wrote."""
    if wrong := wrong_in(manifest):
        raise StoreError("this is not the manifest of a run", where=path, got=wrong, do=do)


def wrong_in(manifest: Mapping[str, Any]) -> str | None:
    """The first field of a manifest that is missing or has the wrong type, in words."""
    for name, (kind, *inside) in _KINDS.items():
        if name not in manifest:
            if name in _NOT_ALWAYS:
                continue
            return f"{name} is missing"
        found = manifest[name]
        if not isinstance(found, kind):
            return f"{name} has the wrong type"
        values = found.values() if isinstance(found, dict) else found
        if inside and not all(isinstance(value, inside[0]) for value in values):
            return f"{name} holds values of the wrong type"
    if any(not isinstance(record.get(key), str) for record in manifest["inputs"].values() for key in ("kind", "name")):
        return "inputs holds a record without kind or name"
    return None if _is_verdict(manifest["verdict"]) else "verdict has the wrong form"


def _is_verdict(written: Any) -> bool:
    """A sentence, or words, numbers and a sentence."""
    if not isinstance(written, Mapping):
        return True
    from anisoscope.inference.verdict import Verdict

    try:
        found = Verdict.from_dict(written)
    except (KeyError, TypeError, ValueError):
        return False
    numbers = [value for one in found.numbers for value in (one.value, one.low, one.high, one.null, one.null_sd)]
    texts = (*found.words, found.sentence, *(one.metric for one in found.numbers))
    return all(isinstance(text, str) for text in texts) and all(isinstance(one, int | float | None) for one in numbers)


def differences(before: Mapping[str, Any], now: Any) -> list[tuple[str, Any, Any]]:
    """The settings (and the command) in which a plan differs from what is asked now: name, before, now."""
    command, settings = now
    found = [("command", before.get("command"), command)] if before.get("command") != command else []
    old, new = ({k: v for k, v in x.items() if v is not None} for x in (before.get("settings", {}), settings))
    names = [*new, *(name for name in old if name not in new)]
    return found + [(name, old.get(name), new.get(name)) for name in names if old.get(name) != new.get(name)]
