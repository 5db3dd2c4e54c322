"""Units of work: however often a pass is killed and continued, and by how many processes, each sequence counts once."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from anisoscope.runs.work.units import Unit, deal, left, parse_shard, roots

PLAN = list(range(97))  # the virtual shards of the sequences of a small corpus, in the order of every plan


def do(unit: Unit, place: int, stop: int) -> tuple[list[int], int]:
    """The sequences that a worker does of a unit from a place of its plan on, and where it stands afterwards."""
    plan = [shard for shard in PLAN if unit.takes(shard)]
    return [shard for shard in plan[place:stop] if unit.wants(shard)], min(stop, len(plan))


@settings(max_examples=200, deadline=None, derandomize=True)
@given(
    sittings=st.lists(
        st.tuples(st.integers(1, 5), st.lists(st.integers(0, 40), min_size=25, max_size=25), st.integers(0, 2**25 - 1)),
        max_size=4,
    ),
    last=st.integers(1, 5),
    shard=st.sampled_from([None, "1/3", "0/2"]),
)
def test_every_sequence_counts_once(sittings, last: int, shard: str | None) -> None:
    done: dict[Unit, int] = {}  # what is on disk: units that saved something
    finished: dict[Unit, bool] = {}
    counted: list[int] = []
    for world, amounts, saved in [*sittings, (last, [10**6] * 25, -1)]:
        todo = left(roots(shard, finished, world), finished)
        dealt = deal(todo, done, world)
        assert len(dealt) == world
        for number, unit in enumerate(unit for units in dealt for unit in units):
            if not saved >> number % 25 & 1:
                continue  # killed before its first saving
            place = max(done.get(unit, 0), unit.start)
            found, done[unit] = do(unit, place, place + amounts[number % 25])
            finished[unit] = done[unit] == len([one for one in PLAN if unit.takes(one)])
            counted += found
    root = Unit() if shard is None else parse_shard(shard)
    assert sorted(counted) == [one for one in PLAN if root.takes(one)]


def test_a_worker_that_saved_nothing_is_not_forgotten() -> None:
    """Two processes begin, one saves and both are killed: the share of the other is still to be done."""
    assert left(roots(None, [Unit(0, 2)], 1), {Unit(0, 2): True}) == [Unit(1, 2)]
