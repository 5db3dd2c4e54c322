"""Two runs compared: nothing is found where nothing changed, and a change is found where there is one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import anisoscope
import zoo
from anisoscope.accumulate.keys import GROUPS, group_of
from anisoscope.accumulate.moments import Moments
from anisoscope.errors import UsageError
from anisoscope.inference.jackknife import jackknife
from anisoscope.inference.metrics import METRICS, lookup
from anisoscope.runs.measurement import Measurement
from anisoscope.runs.table import Row
from anisoscope.studies.compare.differences import differences

torch.set_num_threads(1)

TEXT = "the drift of a cloud is what moves its mean away from where it began as models train on text"


def texts(count: int = 40, seed: int = 0) -> list[str]:
    rng = np.random.default_rng(seed)
    return [" ".join(rng.choice(TEXT.split(), size=rng.integers(5, 12))) for _ in range(count)]


def measured(module: Any, documents: list[str] | None = None, **settings: Any) -> Measurement:
    options = {"neighbours": False, **settings}
    return anisoscope.measure(module, documents or texts(), processor=zoo.processor("gpt2"), **options)


@pytest.fixture(scope="module")
def original() -> Measurement:
    return measured(zoo.module("gpt2"))


def chosen(found: Measurement, metric: str = "mean_cosine") -> dict[str, Row]:
    return {row.site: row for row in found.rows if row.metric == metric}


def perturbed(scale: float) -> Any:
    """The same model, its second block writing one more direction (not 1…1, which a layer norm takes away)."""
    module = zoo.module("gpt2")
    with torch.no_grad():
        module.h[1].mlp.c_proj.bias.add_(scale * torch.linspace(-1, 1, zoo.D))
    return module


TOGETHER = {"partner_cosine": 1.0, "linear_cka": 1.0, "procrustes_distance": 0.0, "neighbour_overlap": 1.0}


def moved(rows: Any) -> list[Row]:
    """The differences among the rows."""
    return [row for row in rows if not row.metric.endswith(("_before", "_after")) and row.metric not in TOGETHER]


def test_identical_runs_differ_by_nothing_with_intervals_of_no_width(original):
    found = anisoscope.compare(original, measured(zoo.module("gpt2")))
    rows = moved(found.rows)
    for metric, same in TOGETHER.items():
        assert [row.value for row in chosen(found, metric).values()] == pytest.approx([same] * 5, abs=1e-12), metric
    assert {row.metric for row in rows} >= {"mean_cosine", "drift_norm", "drift_ratio", "isoscore", "rankme"}
    assert all("paired by" in row.note for row in rows)
    assert list(chosen(found)) == ["embeddings", "block.0", "block.1", "block.2", "final_norm"]
    assert {(row.value, row.low, row.high) for row in rows} == {(0.0, 0.0, 0.0)}
    assert str(found.verdict).startswith("No average cosine changed")


def test_the_interval_of_a_change_reaches_as_far_down_as_up(original):
    found = anisoscope.compare(original, measured(perturbed(0.1)))
    rows = [row for row in moved(found.rows) if row.low is not None and row.value]
    assert any(row.value < 0 <= METRICS[row.metric].low for row in rows if METRICS[row.metric].low is not None)
    for row in rows:
        assert row.value - row.low == pytest.approx(row.high - row.value, rel=1e-9, abs=1e-12), row.metric


def test_a_change_is_found_from_the_block_on_where_it_was_made(original):
    found = anisoscope.compare(original, measured(perturbed(1.0)))
    cosine = chosen(found)
    for site in ("embeddings", "block.0"):
        assert (cosine[site].value, cosine[site].low, cosine[site].high) == (0.0, 0.0, 0.0)
    for site in ("block.1", "block.2", "final_norm"):
        assert cosine[site].low > 0
    assert "changed at 3 of 5 sites" in found.verdict


def test_the_difference_is_second_minus_first(original):
    other = measured(perturbed(1.0))
    there, back = anisoscope.compare(original, other), anisoscope.compare(other, original)
    for site, row in chosen(there).items():
        after, before = other.value("mean_cosine", site=site), original.value("mean_cosine", site=site)
        assert row.value == pytest.approx(after - before, abs=1e-12)
        assert chosen(back)[site].value == pytest.approx(-row.value, abs=1e-12)


def test_rounded_weights_pair_with_the_original(original):
    rounded = zoo.module("gpt2").half().float()
    found = anisoscope.compare(original, measured(rounded))
    for site, row in chosen(found).items():
        assert abs(row.value) < 1e-3, site
        both = [next(r for r in m.rows if r.site == site and r.metric == "mean_cosine") for m in (original, original)]
        apart = float(np.hypot(*(r.high - r.low for r in both)))
        assert row.high - row.low < apart / 20  # what a text does to both models cancels
    assert any(row.value != 0 for row in chosen(found).values())


def test_differences_of_the_spectrum_are_paired(original):
    """Rounded weights change the spectrum by less than one text does: only pairing can tell how much."""
    found = anisoscope.compare(original, measured(zoo.module("gpt2").half().float()))
    for site, row in chosen(found, "participation_ratio").items():
        before = next(r for r in original.rows if (r.site, r.metric) == (site, "participation_ratio"))
        assert "paired by sequence group, to first order" in row.note
        assert 0 < row.high - row.low < (before.high - before.low) / 20


def moments(x: np.ndarray, keys: np.ndarray, **options: Any) -> Moments:
    found = Moments(x.shape[1], **options)
    found.update(torch.from_numpy(x), sequences=keys)
    return found


def clouds(seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A cloud of 200 sequences, and the same after a small change that differs between sequences."""
    rng = np.random.default_rng(seed)
    keys = np.repeat(np.arange(200), 10).astype(np.uint64)
    x = (rng.standard_normal((200, 1, 6)) * 0.5 + rng.standard_normal((200, 10, 6))).reshape(-1, 6) * np.arange(1, 7)
    return x, x + 0.3 * x[:, ::-1] + 0.1 * rng.standard_normal(x.shape), keys


@pytest.mark.parametrize(
    "metric", ["isoscore", "participation_ratio_unbiased", "effective_rank", "pc1_share", "rankme"]
)
def test_paired_intervals_of_the_spectrum_agree_with_leaving_groups_out(metric):
    """The first-order interval against the jackknife of exact eigenvalues, computed anew without each group."""
    x, y, keys = clouds()
    rows = differences(moments(x, keys), moments(y, keys), like=Row(), paired=True)
    row = next(row for row in rows if row.metric == metric)
    group = group_of(keys)

    def value(cloud: np.ndarray) -> float:
        centred = cloud if metric == "rankme" else cloud - cloud.mean(0)
        degrees = len(cloud) - (metric != "rankme")
        return METRICS[metric].of(np.linalg.eigvalsh(centred.T @ centred / degrees)[::-1], len(cloud))

    left = [value(y[group != g]) - value(x[group != g]) for g in range(GROUPS)]
    low, high = jackknife(left, value(y) - value(x), np.bincount(group, minlength=GROUPS))
    assert row.value == pytest.approx(value(y) - value(x), abs=1e-6)
    assert row.high - row.low == pytest.approx(high - low, rel=0.15)


def test_paired_intervals_of_directions_agree_with_leaving_groups_out():
    x, y, keys = clouds()
    x, y = x + 1.0, y + 1.5
    rows = differences(moments(x, keys), moments(y, keys), like=Row(), paired=True, spectra=False)
    row = next(row for row in rows if row.metric == "mean_cosine")
    group = group_of(keys)

    def value(cloud: np.ndarray) -> float:
        u = cloud / np.linalg.norm(cloud, axis=1, keepdims=True)
        return (np.square(u.sum(0)).sum() - len(u)) / (len(u) * (len(u) - 1))

    left = [value(y[group != g]) - value(x[group != g]) for g in range(GROUPS)]
    low, high = jackknife(left, value(y) - value(x), np.bincount(group, minlength=GROUPS))
    assert (row.low, row.high) == pytest.approx((low, high), rel=1e-9)


def test_other_sampled_vectors_leave_the_interval_of_the_spectrum_out():
    x, y, keys = clouds()
    rows = differences(moments(x, keys, seed=0), moments(y, keys, seed=1, reservoir=64), like=Row(), paired=True)
    by_name = {row.metric: row for row in rows}
    assert by_name["mean_cosine"].low is not None
    assert (by_name["isoscore"].low, by_name["isoscore"].high) == (None, None)
    assert by_name["isoscore"].note.endswith("no interval: the runs sampled different vectors")


def test_both_values_stand_beside_the_difference(original):
    other = measured(perturbed(1.0))
    found = anisoscope.compare(original, other)
    for metric in ("mean_cosine", "drift_ratio", "isoscore", "explained_k"):
        for side, run in (("before", original), ("after", other)):
            for site, row in chosen(found, f"{metric}_{side}").items():
                known = next(r for r in run.rows if (r.site, r.metric, r.positions) == (site, metric, "all"))
                assert (row.value, row.low, row.high) == (known.value, known.low, known.high)
    assert all(lookup(row.metric) for row in found.rows)


def test_runs_of_several_models_keep_every_metric_of_each(original, tmp_path):
    other = measured(perturbed(1.0))

    def run(name: str, **models: Measurement) -> Measurement:
        state = {
            f"{model}|{key.partition('|')[2]}": array.copy()
            for model, m in models.items()
            for key, array in m.state.items()
        }
        rows = tuple(replace(row, model=model) for model, m in models.items() for row in m.rows)
        data = {model: next(iter(m.data.values())) for model, m in models.items()}
        both = Measurement(rows, "", (), None, "measure", {}, {}, data, state=state)
        return Measurement.of_run(both.save(tmp_path / name))

    both = anisoscope.compare(run("first", a=original, b=other), run("second", a=other, b=other))
    alone = anisoscope.compare(original, other)
    of_a = [replace(row, model="") for row in both.rows if row.model == "a"]
    assert [(r.site, r.metric, r.value, r.low) for r in of_a] == [
        (r.site, r.metric, r.value, r.low) for r in alone.rows
    ]
    of_b = moved(row for row in both.rows if row.model == "b")
    assert {(row.value, row.low, row.high) for row in of_b} == {(0.0, 0.0, 0.0)}
    assert "most at a " in both.verdict


def test_a_run_without_spectra_is_compared_without_them(original):
    found = anisoscope.compare(original, measured(zoo.module("gpt2"), spectrum=False))
    assert not chosen(found, "isoscore")
    assert chosen(found, "mean_cosine")


def test_other_data_is_not_paired_and_a_note_says_so(original):
    found = anisoscope.compare(original, measured(zoo.module("gpt2"), texts(seed=1)))
    assert {row.low for row in chosen(found).values()} == {None}
    assert "the runs read different data, so the differences have no intervals" in found.notes
    assert any(row.value != 0 for row in chosen(found).values())


@pytest.mark.parametrize(
    ("settings", "together"), [({"length": 4}, False), ({"limit": 30}, True), ({"specials": "drop"}, True)]
)
def test_what_was_asked_differently_is_told_and_other_tokens_are_no_partners(settings, together):
    """Windows of other lengths put other tokens at a position; fewer texts, or fewer of the positions, do not."""
    model = zoo.module("bert")
    asked = {"processor": zoo.processor("bert"), "neighbours": False, "length": 9}
    first, second = (anisoscope.measure(model, texts(), **{**asked, **more}) for more in ({}, settings))
    found = anisoscope.compare(first, second)
    assert any("different settings" in note and next(iter(settings)) in note for note in found.notes)
    assert any("no vector has a partner" in note for note in found.notes) is not together
    values = [row.value for row in found.rows if row.metric == "partner_cosine"]
    assert values == (pytest.approx([1.0] * len(values)) if together else [])
    assert bool(values) is together


def test_only_sites_of_both_are_compared(original):
    found = anisoscope.compare(original, measured(zoo.module("gpt2"), sites=["block.1", "final_norm"]))
    assert list(chosen(found)) == ["block.1", "final_norm"]
    assert "only in the first run, and not compared: embeddings, block.0" in "; ".join(found.notes)


def test_vectors_that_one_run_left_out_are_told():
    x = np.random.default_rng(0).standard_normal((200, 8))
    broken = x.copy()
    broken[:3], broken[5] = np.nan, 0.0
    whole = anisoscope.vectors(x)
    found = anisoscope.compare(whole, anisoscope.vectors(broken))
    assert "vectors with NaN or infinite entries at vectors: 0 in the first run, 3 in the second" in found.notes
    assert "zero vectors at vectors: 0 in the first run, 1 in the second" in found.notes
    assert not any("in the second" in note for note in anisoscope.compare(whole, whole).notes)


def test_runs_without_a_common_site_are_refused(original):
    other = anisoscope.vectors(np.random.default_rng(0).standard_normal((200, 8)))
    with pytest.raises(UsageError, match="no site in common"):
        anisoscope.compare(original, other)


def test_a_run_without_sums_is_refused(original, tmp_path):
    bare = Measurement((Row(site="block.0", metric="mean_cosine", value=0.1, n=3),), "").save(tmp_path / "bare")
    with pytest.raises(UsageError, match="kept no sums"):
        anisoscope.compare(original, bare)


def test_run_folders_compare_like_measurements(original, tmp_path):
    other = measured(perturbed(1.0))
    folders = [Path(m.save(tmp_path / name).folder) for name, m in (("a", original), ("b", other))]
    from_disk, in_memory = anisoscope.compare(*folders), anisoscope.compare(original, other)
    assert [(r.site, r.metric, r.value, r.low) for r in from_disk.rows] == [
        (r.site, r.metric, r.value, r.low) for r in in_memory.rows
    ]
