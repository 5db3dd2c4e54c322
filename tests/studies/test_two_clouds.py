"""Two clouds: what the sums say is what all pairs and the published definitions say, in shards as in one pass."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from numpy.typing import NDArray
from scipy.linalg import orthogonal_procrustes, subspace_angles

import anisoscope
from anisoscope.accumulate.keys import group_of
from anisoscope.errors import InputError, UsageError
from anisoscope.runs.table import Row

Array = NDArray[np.float64]


def clouds(n: int = 900, d: int = 12, k: int = 12, seed: int = 0, noise: float = 0.3) -> tuple[Array, Array]:
    """Partners: the second is the first, turned, moved and blurred."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((n, d)) * np.linspace(1, 0.2, d)
    turn = np.linalg.qr(np.random.default_rng(9).standard_normal((max(d, k), max(d, k))))[0][:d, :k]
    return x + 0.7, x @ turn + noise * rng.standard_normal((n, k)) - 0.2


def pair(found: anisoscope.Result) -> dict[str, Row]:
    return {row.metric: row for row in found.rows if row.site == "pair" and row.at is None}


def width(row: Row) -> float:
    assert row.low is not None
    assert row.high is not None
    return row.high - row.low


def unit(x: Array) -> Array:
    return x / np.linalg.norm(x, axis=1, keepdims=True)


def test_gap_and_cosines_are_those_of_all_pairs() -> None:
    x, y = clouds()
    y = y[:500]
    found = pair(anisoscope.vectors(x, against=y))
    cosines = unit(x) @ unit(y).T
    assert found["gap"].value == pytest.approx(np.linalg.norm(x.mean(0) - y.mean(0)), rel=1e-12)
    assert found["gap_unit"].value == pytest.approx(np.linalg.norm(unit(x).mean(0) - unit(y).mean(0)), rel=1e-12)
    assert found["cosine_between"].value == pytest.approx(cosines.mean(), rel=1e-12)
    assert "linear_cka" not in found


@pytest.mark.parametrize("lost", [0, 1, 20])
def test_partners_do_not_count_between_the_clouds_whichever_rows_are_lost(lost: int) -> None:
    """The value is that of all other pairs; leaving out each group of rows in turn gives its interval."""
    x, y = clouds(n=300, noise=0.01)
    x[:lost], y[7 : 7 + lost // 2] = np.nan, 0.0
    left, right = np.isfinite(x).all(1), y.any(1)
    cosines = unit(x[left]) @ unit(y[right]).T
    apart = np.flatnonzero(left)[:, None] != np.flatnonzero(right)
    row = pair(anisoscope.vectors(x, against=y, aligned=True))["cosine_between"]
    assert row.value == pytest.approx(cosines[apart].mean(), rel=1e-12)
    groups = group_of(np.arange(300, dtype=np.uint64))
    values = []
    for group in range(groups.max() + 1):
        kept = (groups[left] != group)[:, None] & (groups[right] != group) & apart
        values.append(cosines[kept].mean())
    spread = np.sqrt(np.square(np.array(values) - np.mean(values)).sum() * (len(values) - 1) / len(values))
    assert width(row) / 2 == pytest.approx(2.04 * spread, rel=0.1)


def test_axes_overlap_is_that_of_the_angles_between_subspaces() -> None:
    x, y = clouds(d=40, k=40)
    found = [row for row in anisoscope.vectors(x, against=y).rows if row.metric == "axes_overlap"]
    tops = [np.linalg.svd(z - z.mean(0), full_matrices=False)[2][:10].T for z in (x, y)]
    value = {row.at: row.value for row in found}
    assert set(value) == {1.0, 10.0}
    assert value[10.0] == pytest.approx(np.square(np.cos(subspace_angles(*tops))).mean(), rel=1e-6)


@pytest.mark.filterwarnings("error")
def test_a_row_that_outweighs_all_others_gets_no_interval_and_no_warning() -> None:
    x = np.random.default_rng(0).standard_normal((600, 8)) + 0.5
    y = x.copy()
    y[-1, 6] = 99
    found = pair(anisoscope.vectors(x, against=y, aligned=True))["linear_cka"]
    a, b = x - x.mean(0), y - y.mean(0)
    assert found.value == pytest.approx(
        np.linalg.norm(a.T @ b) ** 2 / np.linalg.norm(a.T @ a) / np.linalg.norm(b.T @ b), rel=1e-6
    )
    assert (found.low, found.high) == (None, None)


@pytest.mark.parametrize("k", [12, 7])
def test_partners_are_compared_as_the_published_definitions_say(k: int) -> None:
    x, y = clouds(k=k)
    found = pair(anisoscope.vectors(x, against=y, aligned=True))
    a, b = x - x.mean(0), y - y.mean(0)
    grams = a @ a.T, b @ b.T  # CKA as Kornblith et al. write it, from n × n kernels
    cka = (grams[0] * grams[1]).sum() / (np.linalg.norm(grams[0]) * np.linalg.norm(grams[1]))
    wide = np.pad(b, ((0, 0), (0, 12 - k)))
    scaled = a / np.linalg.norm(a), wide / np.linalg.norm(wide)
    turn, _ = orthogonal_procrustes(*scaled)
    assert found["linear_cka"].value == pytest.approx(cka, rel=1e-6)
    assert found["procrustes_distance"].value == pytest.approx(np.square(scaled[0] @ turn - scaled[1]).sum(), rel=1e-5)
    near = [np.argsort(-(unit(z) @ unit(z).T) + 9 * np.eye(len(z)), axis=1)[:, :10] for z in (x, y)]
    shared = np.mean([len(set(one) & set(other)) / 10 for one, other in zip(*near, strict=True)])
    assert found["neighbour_overlap"].value == pytest.approx(shared, abs=1e-12)
    if k == 12:
        cosines = unit(x) @ unit(y).T
        off = (cosines.sum() - np.trace(cosines)) / (len(x) * (len(x) - 1))
        assert found["partner_cosine"].value == pytest.approx(np.diag(cosines).mean(), rel=1e-12)
        assert found["cosine_between"].value == pytest.approx(off, rel=1e-9)


def test_the_value_by_chance_is_that_of_shuffled_partners() -> None:
    x, y = clouds(n=400)
    null = pair(anisoscope.vectors(x, against=y, aligned=True))["linear_cka"].null
    rng = np.random.default_rng(3)
    a, b = x - x.mean(0), y - y.mean(0)
    norms = np.linalg.norm(a.T @ a) * np.linalg.norm(b.T @ b)
    shuffled = [np.square(a.T @ b[rng.permutation(len(b))]).sum() / norms for _ in range(300)]
    assert null == pytest.approx(np.mean(shuffled), rel=0.05)


@pytest.mark.parametrize("aligned", [False, True])
def test_intervals_are_as_wide_as_fresh_clouds_spread(aligned: bool) -> None:
    """Over many draws of both clouds the sd of every statistic is what the intervals claim, within a third."""
    drawn = []
    for seed in range(60):
        x, y = clouds(n=600, seed=seed)
        y = y if aligned else clouds(n=400, seed=seed + 1000)[1]
        drawn.append(pair(anisoscope.vectors(x, against=y, aligned=aligned, neighbours=False, spectrum=False)))
    names = ["gap", "gap_unit", "cosine_between", *(["partner_cosine", "linear_cka", "procrustes_distance"] * aligned)]
    for name in names:
        rows = [one[name] for one in drawn]
        spread = np.std([row.value for row in rows])
        claimed = np.median([width(row) / 2 for row in rows]) / 2.04
        assert claimed == pytest.approx(spread, rel=0.34), name


def test_shards_add_up_to_one_pass(tmp_path: Path) -> None:
    """Files of different formats and row groups; a pair with a broken vector is left out of what is aligned."""
    x, y = clouds(n=20_000)
    x[5], y[77] = np.nan, 0.0
    np.save(tmp_path / "x.npy", x.astype(np.float32))
    lists = pa.FixedSizeListArray.from_arrays(pa.array(y.astype(np.float32).ravel()), 12)
    pq.write_table(pa.table({"v": lists}), tmp_path / "y.parquet", row_group_size=3000)
    settings = {"against": str(tmp_path / "y.parquet"), "aligned": True, "neighbours": False}
    whole = anisoscope.vectors(tmp_path / "x.npy", **settings)
    shards = [tmp_path / f"run{k}" for k in range(3)]
    for k, out in enumerate(shards):
        anisoscope.vectors(tmp_path / "x.npy", **settings, shard=f"{k}/3", out=out)
    merged = anisoscope.merge(shards, tmp_path / "merged")
    good = np.isfinite(x).all(1) & y.any(1)
    cosines = (unit(x[good]) * unit(y[good])).sum(1)
    assert pair(whole)["partner_cosine"].n == 19_998
    assert pair(whole)["partner_cosine"].value == pytest.approx(cosines.mean(), rel=1e-6)
    for name, row in pair(whole).items():
        ends = pair(merged)[name]
        assert (ends.value, ends.low, ends.high) == pytest.approx((row.value, row.low, row.high), rel=1e-6), name


def test_a_group_is_left_out_of_both_clouds_at_once() -> None:
    """Partners of few documents: intervals are those of documents, wider than those of rows."""
    x, y = clouds(n=960)
    documents = np.repeat(np.arange(40), 24)
    rng = np.random.default_rng(1)
    shift = rng.standard_normal((40, 12))[documents]
    rows = pair(anisoscope.vectors(x + shift, against=y + shift, aligned=True))
    grouped = pair(anisoscope.vectors(x + shift, documents.tolist(), against=y + shift, aligned=True))
    for name in ("partner_cosine", "linear_cka"):
        assert width(grouped[name]) > 1.5 * width(rows[name])


def test_partners_are_in_the_sequences_of_the_first_cloud() -> None:
    """Leaving a group out takes it from both: between two copies there is no gap, whichever is left out."""
    x, documents = clouds(n=960)[0], np.repeat(np.arange(40), 24)
    found = anisoscope.vectors(x, documents.tolist(), against=x.copy(), aligned=True)
    assert width(pair(found)["gap"]) == pytest.approx(0, abs=1e-12)
    first, second = ({row.metric: row for row in found.rows if row.site == site} for site in ("vectors", "against"))
    assert (first["mean_cosine"].low, first["sequences"].value) == (second["mean_cosine"].low, 40)
    assert "sequence: labels of the rows" in first["mean_cosine"].protocol
    assert "sequence: that of the partner: labels of the rows" in second["mean_cosine"].protocol


@pytest.mark.filterwarnings("error")
def test_partners_of_one_group_have_no_interval() -> None:
    x, y = clouds(n=200)
    found = pair(anisoscope.vectors(x, [0] * 200, against=y, aligned=True))
    assert found["gap"].value == pytest.approx(np.linalg.norm(x.mean(0) - y.mean(0)), rel=1e-12)
    assert found["gap"].low is None


@pytest.mark.parametrize("has", [True, False])
def test_a_second_cloud_is_grouped_where_it_has_the_column(has: bool, tmp_path: Path) -> None:
    x, y = clouds(n=400)
    documents = np.arange(400) // 10
    columns = {"v": list(y), **({"g": documents} if has else {})}
    pq.write_table(pa.table({"v": list(x), "g": documents}), tmp_path / "x.parquet")
    pq.write_table(pa.table(columns), tmp_path / "y.parquet")
    asked = {"against": [tmp_path / "y.parquet"], "column": "v", "group": "g", "out": tmp_path / "run"}
    found = anisoscope.vectors(tmp_path / "x.parquet", **asked)
    assert anisoscope.vectors(tmp_path / "x.parquet", **asked).rows == found.rows  # used again
    rows = {row.metric: row for row in found.rows if row.site == "against"}
    assert rows["sequences"].value == (40 if has else 400)
    words = "column g" if has else "every vector is its own sequence"
    assert f"sequence: {words};" in rows["mean_cosine"].protocol


def test_what_cannot_be_aligned_is_refused(tmp_path: Path) -> None:
    x, y = clouds(n=100)
    with pytest.raises(InputError, match="partners"):
        anisoscope.vectors(x, against=y[:50], aligned=True)
    with pytest.raises(UsageError, match="second cloud"):
        anisoscope.vectors(x, aligned=True)
    (tmp_path / "y.jsonl").write_text("".join(f"{row.tolist()}\n" for row in y[:50]))
    np.save(tmp_path / "x.npy", x)
    with pytest.raises(InputError, match="partners"):  # whose length only a pass can tell
        anisoscope.vectors(tmp_path / "x.npy", against=tmp_path / "y.jsonl", aligned=True)
