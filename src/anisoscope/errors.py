"""One family of errors; every message says what happened, where, what was given, what was expected, and what to do.

>>> print(UsageError("cannot read the file", where="x.npy", got="3 axes", expected="2 axes", do="reshape it to (n, d)"))
cannot read the file: x.npy
  got:      3 axes
  expected: 2 axes
  to do:    reshape it to (n, d)
"""

from __future__ import annotations

LONGEST = 1000  # characters of a name that are shown


class AnisoscopeError(Exception):
    """A failure that the user can act on. `exit_code` is what the command line returns."""

    exit_code = 1

    def __init__(
        self,
        what: str,
        *,
        where: object = None,
        got: object = None,
        expected: object = None,
        do: str | None = None,
    ) -> None:
        if isinstance(got, OSError) and got.strerror and where is not None:
            got = got.strerror  # without the number and the name, which `where` gives
        self.what, self.where, self.got, self.expected, self.do = what, where, got, expected, do
        lines = [what if where is None else f"{what}: {shortened(where)}"]
        lines += [f"  got:      {shortened(got)}"] if got is not None else []
        lines += [f"  expected: {expected}"] if expected is not None else []
        lines += [f"  to do:    {do}"] if do is not None else []
        super().__init__("\n".join(map(printable, lines)))


class UsageError(AnisoscopeError):
    """The request itself is wrong: an unknown option value, a file of the wrong kind, contradictory arguments."""

    exit_code = 2


class InputError(AnisoscopeError):
    """The data cannot be measured: nothing readable, nothing finite, too little of it."""


class ModelError(AnisoscopeError):
    """The model cannot be opened or run."""


class StoreError(AnisoscopeError):
    """A run folder cannot be read or written."""


class RanksLost(AnisoscopeError):
    """A worker of a distributed run died again and again on the same piece of work."""

    def __init__(self, unit: str, error: object) -> None:
        super().__init__(
            "a worker died several times on the same part of the data",
            where=unit,
            got=str(error).splitlines()[0] if str(error) else type(error).__name__,
            do="make sure that there is enough memory; the same command then continues",
        )


class MissingExtra(AnisoscopeError):
    """An optional library is needed but not installed."""

    def __init__(self, library: str, *, needed_for: str, extra: str) -> None:
        super().__init__(
            f"{needed_for} needs the library {library!r}, which is not installed",
            do=f"pip install 'anisoscope[{extra}]'",
        )


def shortened(text: object) -> str:
    """Both ends of what is longer than any name or path that a person would read.

    >>> shortened("x" * 5000)[145:] == "xxxxx … (5,000 characters) … " + "x" * 150
    True
    """
    whole = str(text)
    return whole if len(whole) <= LONGEST else f"{whole[:150]} … ({len(whole):,} characters) … {whole[-150:]}"


def printable(text: object) -> str:
    r"""One line that is safe on a terminal: control characters are shown, not obeyed, and no name can start a new line.

    >>> print(printable("a\x1b[31mb\nc"))
    a\x1b[31mb\nc
    """
    kept = "".join(
        character if character == "\t" or not _controls(character) else character.encode("unicode_escape").decode()
        for character in str(text)
    )
    return kept.encode("utf-8", "backslashreplace").decode()  # a name that is not UTF-8 holds lone surrogates


def _controls(character: str) -> bool:
    """C0 and C1 controls, other line breaks, and the marks that turn the direction of text around."""
    code = ord(character)
    return code < 32 or 127 <= code < 160 or 0x2028 <= code <= 0x202E or 0x2066 <= code <= 0x2069
