"""Read TOML, and write the small part of it that settings need: tables of scalars and lists.

>>> print(dumps({"command": "vectors", "settings": {"files": ["x.npy"], "seed": 0, "group": None}}))
command = "vectors"
<BLANKLINE>
[settings]
files = ["x.npy"]
seed = 0
<BLANKLINE>
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from anisoscope.errors import UsageError

_BARE = re.compile(r"[A-Za-z0-9_-]+")


def load(path: Path | str) -> dict[str, Any]:
    """Parse a TOML file; a clear error where it is none."""
    try:
        return tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise UsageError("there is no such file", where=path) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError("this is not valid TOML", where=path, got=error) from error


def dumps(value: Mapping[str, Any]) -> str:
    """The text of a table; missing values (None) are left out, as TOML has no null."""
    return "\n".join(_lines(value, ())).lstrip("\n") + "\n"


def _lines(table: Mapping[str, Any], path: tuple[str, ...]) -> list[str]:
    scalars = {key: item for key, item in table.items() if not isinstance(item, Mapping) and item is not None}
    lines = [f"{_key(key)} = {_value(item)}" for key, item in scalars.items()]
    for key, item in table.items():
        if isinstance(item, Mapping):
            inner = (*path, key)
            lines += ["", f"[{'.'.join(map(_key, inner))}]", *_lines(item, inner)]
    return lines


def _key(key: str) -> str:
    return key if _BARE.fullmatch(key) else _value(key)


def _value(item: Any) -> str:
    if isinstance(item, bool):
        return "true" if item else "false"
    if isinstance(item, str):  # JSON's escapes are TOML's, but beyond the BMP: such characters are kept as they are
        text = item.encode("utf-8", "backslashreplace").decode()  # TOML cannot spell a file name that is not UTF-8
        return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(item, int | float):
        return repr(item)
    if isinstance(item, list | tuple):
        return "[" + ", ".join(_value(element) for element in item) + "]"
    if isinstance(item, Path):
        return _value(str(item))
    raise TypeError(f"TOML has no form for {type(item).__name__}")
