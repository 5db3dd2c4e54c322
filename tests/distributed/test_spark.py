"""The Spark recipe of docs/scale.md, as printed, on a local Spark: the numbers are those of one process."""

from __future__ import annotations

import os
import re
import shutil
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import anisoscope

pyspark = pytest.importorskip("pyspark", reason="Spark is not installed")
if shutil.which("java") is None:
    pytest.skip("Spark needs Java", allow_module_level=True)


def test_the_recipe_gives_the_numbers_of_one_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from pyspark.sql import SparkSession  # pyright: ignore[reportMissingImports] optional

    x = (np.random.default_rng(0).standard_normal((4000, 16)) + 0.5).astype(np.float32)
    lists = pa.array(list(x), pa.list_(pa.float32()))
    pq.write_table(pa.table({"embedding": lists, "id": np.arange(4000)}), tmp_path / "x.parquet", row_group_size=1000)
    text = (Path(__file__).parents[2] / "docs" / "scale.md").read_text(encoding="utf-8")
    recipe = next(block for block in re.findall(r"```py\n(.*?)```", text, re.DOTALL) if "mapInArrow" in block)
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, sys.path)))
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    spark = builder.config("spark.driver.host", "127.0.0.1").getOrCreate()
    try:
        names = {"spark": spark}
        exec(compile(recipe.replace("s3a://bucket/embeddings", str(tmp_path / "x.parquet")), "scale.md", "exec"), names)
    finally:
        spark.stop()
    expected = anisoscope.vectors(x, neighbours=False).value("mean_cosine")
    sums = names["total"].sums()
    found = (np.square(sums.sum_unit).sum() - sums.n) / (sums.n * (sums.n - 1))
    assert sums.n == 4000
    assert found == pytest.approx(expected, rel=1e-10)
