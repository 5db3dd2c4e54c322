"""A sample by row group: what it reads, that it is fair, and that its intervals know about row groups."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import anisoscope
from anisoscope.errors import InputError, UsageError
from anisoscope.inputs.vectors.sampled import FEWEST, SampledSource, draw
from anisoscope.inputs.vectors.source import open_vectors
from anisoscope.runs.work.blocks import blocks_of
from anisoscope.runs.work.units import Unit

ROWS = 50


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """400 row groups, each with a direction of its own."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((400, ROWS, 16)) + rng.standard_normal((400, 1, 16)) + 0.6
    lists = pa.FixedSizeListArray.from_arrays(pa.array(x.astype(np.float32).reshape(-1)), 16)
    path = tmp_path_factory.mktemp("sampled") / "x.parquet"
    pq.write_table(pa.table({"v": lists, "g": np.arange(len(lists)) // 7}), path, row_group_size=ROWS)
    return path


def test_a_share_of_the_groups_is_read_and_no_other(file: Path) -> None:
    whole = np.concatenate([block.x for block in open_vectors(file, column="v").blocks()])
    source = SampledSource(open_vectors(file, column="v"), 0.1, seed=3)
    blocks = list(source.blocks())
    assert len(source.drawn.groups) == 40 == len(blocks)
    for block in blocks:
        assert block.keys == [f"row group {block.start // ROWS}"] * ROWS
        assert np.array_equal(block.x, whole[block.start : block.start + ROWS])


def test_few_groups_are_wanted_in_any_case_and_thinned(file: Path) -> None:
    source = SampledSource(open_vectors(file, column="v"), 0.02, seed=0)
    assert len(source.drawn.groups) == FEWEST
    assert source.drawn.rows == pytest.approx(0.02 * 400 / FEWEST)
    assert sum(len(block.x) for block in source.blocks()) == pytest.approx(0.02 * 20_000, rel=0.2)


def test_every_row_has_the_same_chance(file: Path) -> None:
    source, counts = open_vectors(file, column="v"), np.zeros(400)
    for seed in range(400):
        counts[list(draw(source.chunks or 0, 0.1, seed).groups)] += 1
    spread = (400 * 0.1 * 0.9) ** 0.5
    assert abs(counts - 40).max() < 4.5 * spread
    assert counts.std() == pytest.approx(spread, rel=0.15)


def test_shares_of_a_sample_add_up_to_it(file: Path) -> None:
    source = SampledSource(open_vectors(file, column="v"), 0.02, seed=1)
    whole = np.concatenate([rows.x for _, rows in blocks_of(source, Unit())])
    shared = [rows.x for index in range(3) for _, rows in blocks_of(source, Unit(index, 3))]
    assert np.array_equal(np.sort(whole, axis=0), np.sort(np.concatenate(shared), axis=0))


def test_intervals_go_by_row_group_and_the_first_sentence_says_so(file: Path) -> None:
    options = {"column": "v", "neighbours": False, "spectrum": False}
    truth = anisoscope.vectors(str(file), **options).value("mean_cosine")
    assert truth is not None
    within, said, protocol = 0, "", ""
    for seed in range(10):
        found = anisoscope.vectors(str(file), rows_per_group_sample=0.1, seed=seed, **options)
        row = next(row for row in found.rows if row.metric == "mean_cosine" and row.positions == "all")
        assert row.low is not None
        assert row.high is not None
        within += row.low <= truth <= row.high
        said, protocol = getattr(found.verdict, "sentence", ""), row.protocol
    assert within >= 8
    assert "From 2,000 of 20,000 rows (40 of 400 row groups, every row of each)" in said
    assert "row group" in protocol


def test_what_has_no_row_groups_is_refused(file: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.ones((100, 4)))
    with pytest.raises(UsageError, match="only files with row groups"):
        anisoscope.vectors(str(tmp_path / "x.npy"), rows_per_group_sample=0.5)
    with pytest.raises(UsageError, match="takes them as sequences"):
        anisoscope.vectors(str(file), column="v", group="g", rows_per_group_sample=0.5)


def test_hubs_are_not_given_the_hash_of_their_row_group_as_a_number(file: Path) -> None:
    found = anisoscope.vectors(str(file), column="v", rows_per_group_sample=0.1, spectrum=False)
    names = [row.note for row in found.rows if row.metric == "hub_occurrence"]
    assert names
    assert not [name for name in names if name.startswith("row ")]


def test_partners_that_are_drawn_from_other_row_groups_are_refused(file: Path, tmp_path: Path) -> None:
    """As many rows of each file, of which none need be of the same number."""
    table = pq.read_table(file)
    alike, other = tmp_path / "alike.parquet", tmp_path / "other.parquet"
    pq.write_table(table, alike, row_group_size=ROWS)
    pq.write_table(table, other, row_group_size=ROWS // 2)
    options = {"column": "v", "aligned": True, "rows_per_group_sample": 0.5, "neighbours": False, "spectrum": False}
    found = anisoscope.vectors(str(file), against=[str(alike)], **options)
    assert found.value("partner_cosine") == pytest.approx(1)
    with pytest.raises(InputError, match="row groups of other rows"):
        anisoscope.vectors(str(file), against=[str(other)], **options)
