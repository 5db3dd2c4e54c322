"""The tidy table opens everywhere with the same columns, and missing is missing."""

from __future__ import annotations

import math
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from anisoscope.runs.store import write_run
from anisoscope.runs.table import COLUMNS, Row, from_table, schema, to_table

ROWS = (
    Row(site="block.0", layer=0, metric="mean_cosine", value=0.25, low=0.2, high=0.3, null=0.0, n=1000, seed=0),
    Row(site="block.1", metric="condition_number", value=None, n=2**40, note="no variance: „so“", step=2**35),
    Row(site="block.1", metric="bad", value=math.nan, low=-math.inf, high=math.inf),
)


@pytest.fixture
def parquet(tmp_path: Path) -> Path:
    return write_run(tmp_path / "r", command="x", settings={}, rows=ROWS, protocol={}).folder / "measurements.parquet"


def test_rows_survive_the_table() -> None:
    assert from_table(to_table(ROWS[:2])) == list(ROWS[:2])


def test_what_is_not_finite_becomes_missing() -> None:
    bad = from_table(to_table(ROWS))[2]
    assert (bad.value, bad.low, bad.high) == (None, None, None)


def test_the_columns_of_the_style_guide_come_in_order() -> None:
    named = "run, model, revision, step, site, layer, head, metric, value, low, high, null, n, note"
    assert ", ".join(COLUMNS).startswith(named)
    assert schema().names == list(COLUMNS)


def test_an_empty_table_keeps_its_types() -> None:
    assert to_table([]).schema == schema()


def test_pyarrow_reads_it(parquet: Path) -> None:
    table = pq.read_table(parquet)
    assert table.schema.remove_metadata() == schema()
    assert table.column("value").to_pylist() == [0.25, None, None]
    assert table.column("run").to_pylist() == ["r", "r", "r"]


def test_pandas_reads_it(parquet: Path) -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.read_parquet(parquet)
    assert list(frame.columns) == list(COLUMNS)
    assert frame["value"].isna().tolist() == [False, True, True]
    assert frame.loc[1, "note"] == "no variance: „so“"
    assert int(frame.loc[1, "n"]) == 2**40


def test_polars_reads_it(parquet: Path) -> None:
    polars = pytest.importorskip("polars")
    frame = polars.read_parquet(parquet)
    assert frame.columns == list(COLUMNS)
    assert frame["value"].to_list() == [0.25, None, None]
    assert frame["step"].to_list() == [None, 2**35, None]


def test_duckdb_reads_it(parquet: Path) -> None:
    duckdb = pytest.importorskip("duckdb")
    query = f"SELECT site, value FROM '{parquet}' WHERE value IS NULL ORDER BY metric"
    assert duckdb.sql(query).fetchall() == [("block.1", None), ("block.1", None)]
