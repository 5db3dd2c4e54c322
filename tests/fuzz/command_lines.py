"""Command lines out of bytes: words of the commands, odd values, and any text, up to where the work would begin."""

from __future__ import annotations

import os
import sys
from contextlib import ExitStack
from functools import cache
from typing import Any
from unittest.mock import patch

from anisoscope.cli.main import _load, commands
from anisoscope.errors import AnisoscopeError

_SKIPPED = {"demo", "paper"}  # their work begins at once
_FILES = ["x.npy", "missing.npy", "texts.txt", ".", "gpt2", "bert-base-uncased@step1", "hf:wikitext", "-", "*.npy", "r"]
_NUMBERS = ["0", "-1", "1", "7", "1e3", "1e400", "nan", "inf", "-inf", "1" * 25, "0x10", "1_000", "1,2,3", "0-4", "4-0"]
_TEXTS = [
    "",
    " ",
    "=",
    "a=b",
    "hidden=8",
    "é",
    "\udce9",
    "\x1b[31m",
    "\u202e",
    "a" * 5000,
    "%s",
    "{0}",
    "--",
    "\n",
    "'",
]
_OTHER = ["true", "float64", "lines", "resume", "replace", "mean", "best", "whiten-k", "block.*", "0/2", "3/2", "cpu"]
_ODD = [*_FILES, *_NUMBERS, *_TEXTS, *_OTHER]


class Reached(AnisoscopeError):
    """The words made sense: here the work would begin."""


@cache
def vocabulary() -> list[str]:
    """Every command, every option, and values."""
    words = [name for name in commands() if name not in _SKIPPED]
    options: dict[str, None] = {}
    for name in [*words]:
        command = _load(name)
        for one in [command, *getattr(command, "commands", {}).values()]:
            options |= dict.fromkeys(word for given in one.params for word in (*given.opts, *given.secondary_opts))
    words += ["fit", "apply", "export", *(word for word in options if word.startswith("-"))]
    return words + _ODD


def words_of(data: bytes) -> list[str]:
    """Two bytes are a word of the vocabulary; beyond it, a text up to the next zero byte follows."""
    known, found, place = vocabulary(), [], 0
    while place + 1 < len(data) and len(found) < 40:
        index = int.from_bytes(data[place : place + 2], "big")
        place += 2
        if index < len(known):
            found.append(known[index])
            continue
        text, _, _ = data[place:].partition(b"\0")
        place += len(text) + 1
        found.append(text.decode("utf-8", "surrogateescape").replace("/", "_"))
    return found


def bytes_of(*words: str) -> bytes:
    """The inverse of `words_of`."""
    known = vocabulary()
    parts = [
        known.index(word).to_bytes(2, "big") if word in known else b"\xff\xff" + os.fsencode(word) + b"\0"
        for word in words
    ]
    return b"".join(parts)


def read(data: bytes) -> None:
    """Run the command line up to the work; anything but an orderly end is a finding."""
    from anisoscope.cli.main import main

    words = words_of(data)
    if not words or words[0] in _SKIPPED or any("-completion" in word for word in words):
        return
    stdin, code = sys.stdin, None
    with _stop_before_work(), open(os.devnull) as sys.stdin:
        try:
            main([*words, "--debug"])
        except SystemExit as ended:
            code = ended.code
        finally:
            sys.stdin = stdin
    assert code in (None, 0, 1, 2), code


def _stop_before_work() -> Any:
    """A context in which what a command would do is not done."""
    import typer

    import anisoscope.cli.main as entrance

    def reached(*_: Any, **__: Any) -> Any:
        raise Reached("here the work begins")

    stack = ExitStack()
    for name in ("runs.perform.perform", "training.pretrain.pretrain", "models.open.open_model"):
        stack.enter_context(patch(f"anisoscope.{name}", reached))
    stack.enter_context(patch.object(entrance, "_load", _loaded))  # made once, not for every line
    stack.enter_context(patch.object(entrance, "app", _whole(typer.main.get_command, entrance.app)))
    return stack


@cache
def _loaded(name: str) -> Any:
    return _load(name)


@cache
def _whole(make: Any, app: Any) -> Any:
    return make(app)


SEEDS = [
    bytes_of("vectors", "x.npy", "--column", "a", "--sample", "7", "--json"),
    bytes_of("measure", "gpt2", "--data", "texts.txt", "--documents", "lines", "--length", "7", "--out", "r"),
    bytes_of("sweep", "gpt2", "--steps", "log", "--seeds", "0-4"),
    bytes_of("block", "--arch", "gpt2", "--norms", "1,2,3", "--seeds", "7"),
    bytes_of("variants", "--data", "texts.txt", "--recipe", "hidden=8", "--arms", "softmax"),
    bytes_of("pretrain", "--data", "texts.txt", "--steps", "7", "--seeds", "0-4"),
    bytes_of("remedy", "fit", "x.npy", "--method", "whiten-k", "--dims", "7"),
    bytes_of("null", "--dim", "1,2,3", "--n", "7"),
    bytes_of("show", "r", "--csv", "x.npy"),
    bytes_of("run", "r"),
]
