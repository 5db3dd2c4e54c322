"""Units of work: which sequences one process sums, so that any number of processes may share a pass.

Every sequence falls into one of 4,096 virtual shards by the hash of its key. Unit i of n takes the shards v with
v mod n = i. Within a unit the windows run in the order of the unit's plan, so what is done is a prefix of it, and what
is left after a kill is the rest: `start` says where it begins. If another number of processes continues, each rest is
dealt out again by the next digits of v (`filters`), and the sums of the prefix are added at the end like any others.
What is on disk after a kill need not name every unit, because some had saved nothing: `left` completes the picture.

>>> unit = Unit(1, 4)
>>> left = unit.rest(120).part(0, 2)
>>> left.name, sum(left.wants(v) for v in range(VIRTUAL)), unit.wants(5), left.wants(5)
('1-of-4.120.0-of-2', 512, True, False)
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from anisoscope.errors import UsageError

VIRTUAL = 4096


def virtual_shard(key: str | int) -> int:
    """The virtual shard of a sequence, by its name or number: the same in every process, on every machine."""
    return int.from_bytes(hashlib.blake2b(str(key).encode("utf-8", "surrogatepass"), digest_size=4).digest()) % VIRTUAL


@dataclass(frozen=True)
class Unit:
    """Part `index` of `of`, from the place `start` of its plan on; of that, what the `filters` (index, of) leave."""

    index: int = 0
    of: int = 1
    start: int = 0
    filters: tuple[tuple[int, int], ...] = ()

    @property
    def name(self) -> str:
        parts = [f"{self.index}-of-{self.of}"] + ([str(self.start)] if self.start or self.filters else [])
        return ".".join([*parts, *(f"{index}-of-{of}" for index, of in self.filters)])

    @property
    def whole(self) -> bool:
        return self.of == 1

    def takes(self, shard: int) -> bool:
        """Whether a virtual shard belongs to the unit's plan."""
        return shard % self.of == self.index

    def wants(self, shard: int) -> bool:
        """Whether a virtual shard is this unit's to run: in its plan, and left by its filters."""
        if not self.takes(shard):
            return False
        rest = shard // self.of
        for index, of in self.filters:
            if rest % of != index:
                return False
            rest //= of
        return True

    def rest(self, done: int) -> Unit:
        """What is left of this unit once its plan is done up to `done`."""
        return replace(self, start=max(done, self.start))

    def part(self, index: int, of: int) -> Unit:
        """One of `of` parts of what this unit has to do."""
        return self if of == 1 else replace(self, filters=(*self.filters, (index, of)))

    def as_list(self) -> list[object]:
        return [self.index, self.of, self.start, [list(one) for one in self.filters]]

    @classmethod
    def of_list(cls, written: list) -> Unit:
        index, of, start, filters = written
        return cls(int(index), int(of), int(start), tuple((int(i), int(n)) for i, n in filters))


def parse_shard(text: str) -> Unit:
    """`2/8` as the unit 2 of 8, counted from 0.

    >>> parse_shard("2/8")
    Unit(index=2, of=8, start=0, filters=())
    """
    index, slash, of = text.partition("/")
    if not (slash and index.isdecimal() and of.isdecimal() and int(index) < int(of) <= VIRTUAL):
        expected = f"I/N with I from 0 to N − 1 and N at most {VIRTUAL}, such as 0/8"
        raise UsageError("this is not a shard", got=text, expected=expected)
    return Unit(int(index), int(of))


def roots(shard: str | None, begun: Iterable[Unit], workers: int) -> list[Unit]:
    """What the whole, or a shard of it, was first cut into: as many units as there were workers then."""
    if shard is not None:
        return [parse_shard(shard)]
    of = next((unit.of for unit in begun), workers)
    return [Unit(index, of) for index in range(of)]


def left(first: Iterable[Unit], finished: Mapping[Unit, bool]) -> list[Unit]:
    """The units that are still to be done, of those that were cut `first`.

    `finished` says of every unit with a state on disk whether it is complete. A unit that was dealt out again is known
    by any of its parts; its parts that left no state are to be done from their start.

    >>> begun = {Unit(0, 2): False, Unit(0, 2, 40, ((1, 3),)): True}
    >>> [unit.name for unit in left([Unit(0, 2), Unit(1, 2)], begun)]
    ['0-of-2.40.0-of-3', '0-of-2.40.2-of-3', '1-of-2']
    """
    found: list[Unit] = []
    for unit in first:
        parts = [one for one in finished if (one.index, one.of) == (unit.index, unit.of)]
        part = next((one for one in parts if one.filters and one.filters[:-1] == unit.filters), None)
        if part is not None:
            of = part.filters[-1][1]
            siblings = [replace(part, filters=(*unit.filters, (index, of))) for index in range(of)]
            found += left(siblings, finished)
        elif not finished.get(unit, False):
            found.append(unit)
    return found


def deal(units: Sequence[Unit], done: Mapping[Unit, int], workers: int) -> list[list[Unit]]:
    """The units of each worker: whole ones where there is one for each, else a part of what is left of every one."""
    if workers == 1 or len(units) == workers:
        return [[unit] for unit in units] if workers > 1 else [list(units)]
    rest = [unit.rest(done.get(unit, 0)) for unit in units]
    return [[unit.part(worker, workers) for unit in rest] for worker in range(workers)]
