"""Sweeps of small series, and the planes of queries and keys against an SVD of the vectors themselves."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from safetensors.numpy import load_file, save_file

import zoo
from anisoscope.accumulate.attention.heads import Heads
from anisoscope.errors import InputError, ModelError, UsageError
from anisoscope.models.stand_ins import processors as stand_in_processors
from anisoscope.runs.measurement import Measurement
from anisoscope.runs.perform import perform
from anisoscope.runs.store import open_run
from anisoscope.runs.table import Row
from anisoscope.runs.work.collected import Part
from anisoscope.runs.work.observers import AttentionSums
from anisoscope.studies.attention.story import agreeing
from anisoscope.studies.sweep import SweepSettings
from anisoscope.studies.sweep.checkpoints import checkpoint_rows
from anisoscope.studies.sweep.dynamics import series_arrays
from anisoscope.studies.sweep.story import training_verdict

STEPS = (0, 8, 16)

# -- planes ------------------------------------------------------------------------------------------------------------


def cloud(rng: np.random.Generator, heads: int, drift: float) -> torch.Tensor:
    """(sequences, heads, positions, d), each head with a drift of its own."""
    x = rng.normal(size=(12, heads, 9, 6)) * rng.uniform(0.2, 2, size=6)
    return torch.from_numpy((x + drift * rng.normal(size=(1, heads, 1, 6))).astype(np.float32))


def filled(queries: torch.Tensor, keys: torch.Tensor) -> Heads:
    heads = Heads(query_heads=queries.shape[1], key_heads=keys.shape[1], d=6, sample=40, seed=3)
    sequences = np.arange(12, dtype=np.uint64)
    positions = np.tile(np.arange(9), (12, 1))
    for side, x in ((heads.queries, queries), (heads.keys, keys)):
        side.update(x, torch.ones(12, 9, dtype=torch.bool), sequences, positions)
    return heads


@pytest.fixture
def stacked() -> tuple[dict[str, NDArray], NDArray, NDArray]:
    """The arrays of three steps, and all their queries and keys (steps, heads, vectors, d); two heads share keys."""
    rng = np.random.default_rng(0)
    parts, every_query, every_key = [], [], []
    for step in range(3):
        queries, keys = cloud(rng, 4, step), cloud(rng, 2, step)
        sums = AttentionSums()
        sums.parts["block.0/heads"] = filled(queries, keys)
        parts.append(Part({"attention": sums}))
        every_query.append(queries.transpose(0, 1).flatten(1, 2).numpy())
        every_key.append(keys.repeat_interleave(2, dim=1).transpose(0, 1).flatten(1, 2).numpy())
    return series_arrays([0, 8, 16], parts), np.stack(every_query), np.stack(every_key)


@pytest.mark.parametrize("plane", ["union", "keys", "queries"])
def test_the_plane_is_that_of_an_svd_of_all_vectors(
    plane: str, stacked: tuple[dict[str, NDArray], NDArray, NDArray]
) -> None:
    arrays, queries, keys = stacked
    for head in range(4):
        sides = {"union": (queries, keys), "keys": (keys,), "queries": (queries,)}[plane]
        whole = np.concatenate([side[:, head].reshape(-1, 6) for side in sides]).astype(np.float64)
        _, values, vectors = np.linalg.svd(whole, full_matrices=False)
        axes = arrays[f"block.0/{plane}/axes"][head]
        assert np.abs(np.sum(axes * vectors[:2], axis=1)) == pytest.approx([1, 1], abs=1e-6)
        assert arrays[f"block.0/{plane}/share"][head] == pytest.approx(values**2 / np.sum(values**2), rel=1e-5)
        assert (axes @ queries[-1, head].mean(0) >= 0).all()
        for side, vectors_of in (("query", queries), ("key", keys)):
            means = vectors_of[:, head].astype(np.float64).mean(1) @ axes.T
            assert arrays[f"block.0/{plane}/{side}"][:, head, 0] == pytest.approx(means, abs=1e-6)


def test_intervals_surround_the_means_and_follow_the_spread(
    stacked: tuple[dict[str, NDArray], NDArray, NDArray],
) -> None:
    arrays, queries, _ = stacked
    value, low, high = np.moveaxis(arrays["block.0/union/query"], 2, 0)
    assert ((low < value) & (value < high)).all()
    axes = arrays["block.0/union/axes"]
    by_sequence = queries.reshape(3, 4, 12, 9, 6).mean(3) @ np.swapaxes(axes, 1, 2)  # (steps, heads, sequences, 2)
    error = by_sequence.std(2, ddof=1) / 12**0.5
    assert np.median((high - low) / 2 / error) == pytest.approx(2.2, rel=0.15)  # Student's t of about 10 groups


def test_points_are_sampled_vectors_of_the_same_positions_at_every_step(
    stacked: tuple[dict[str, NDArray], NDArray, NDArray],
) -> None:
    arrays, queries, keys = stacked
    places = {}
    for side, vectors in (("query", queries), ("key", keys)):
        points = arrays[f"block.0/union/{side}_points"]
        assert points.shape == (3, 4, 40, 2)
        projected = np.einsum("shnd,had->shna", vectors, arrays["block.0/union/axes"])
        distance = np.linalg.norm(points[:, :, :, None] - projected[:, :, None], axis=-1)  # (steps, heads, m, n)
        assert distance.min(-1).max() < 1e-4
        places[side] = distance.argmin(-1)
        assert (places[side] == places[side][:1, :1]).all()
    assert (places["query"] == places["key"]).all()


def test_layers_come_in_their_order_from_sums_that_are_listed_by_name() -> None:
    rng = np.random.default_rng(0)
    heads = filled(cloud(rng, 2, 0.0), cloud(rng, 2, 0.0))
    sums = AttentionSums()
    sums.parts |= dict.fromkeys(("block.0/heads", "block.10/heads", "block.2/heads"), heads)
    part = Part({"attention": sums}, {"model": {"revision": ""}, "protocol": {}})
    rows = checkpoint_rows(SimpleNamespace(sites=("attention",)), "m", part).rows
    found = [(row.site, row.layer) for row in rows if row.head is None and row.metric == "query_key_cosine"]
    assert found == [("block.0", 0), ("block.2", 2), ("block.10", 10)]


def test_heads_beyond_the_null_are_counted() -> None:
    def row(head: int, value: float | None, step: int) -> Row:
        site = f"block.0.head.{head}"
        return Row(site=site, layer=0, head=head, metric="query_key_cosine", value=value, null_sd=0.25, step=step)

    rows = [row(0, 0.9, 1), row(1, -0.9, 1), row(2, 0.1, 1), row(3, None, 1)]
    assert agreeing(rows) == (1, 1, 3)
    assert agreeing([]) is None
    before = [row(head, 0.0, 0) for head in range(3)]
    assert "0 → 2 of 3 (1 the same, 1 opposite" in training_verdict(before + rows)


@pytest.mark.parametrize(
    ("course", "told"),
    [
        (
            (0.05, 0.98, 0.14),
            "0.05 at step 0, rises to 0.98 at step 64 (block.0, a collapse) and ends at 0.14 at step 8,",
        ),
        ((0.05, 0.50, 0.14), "0.05 at step 0, rises to 0.50 at step 64 (block.0) and ends at 0.14 at step 8,192."),
        ((0.60, 0.20, 0.50), "0.60 at step 0, falls to 0.20 at step 64 and ends at 0.50 at step 8,192."),
        ((0.10, 0.15, 0.14), "0.10 at step 0 and 0.14 at step 8,192."),
    ],
)
def test_the_story_of_a_training_is_its_extremes(course: tuple[float, ...], told: str) -> None:
    about = {"site": "block.0", "layer": 0, "metric": "mean_cosine"}
    rows = [Row(step=step, value=value, **about) for step, value in zip((0, 64, 8192), course, strict=True)]
    assert training_verdict(rows).startswith(f"The highest average cosine of a block is {told}")


def test_several_seeds_are_said_to_be_averaged() -> None:
    about = {"site": "block.0", "layer": 0, "metric": "mean_cosine"}
    rows = [Row(step=step, seed=seed, value=0.1 + 0.1 * seed, **about) for step in (0, 8) for seed in (0, 1)]
    assert training_verdict(rows) == (
        "The highest average cosine of a block (mean of 2 seeds) is 0.15 at step 0 and 0.15 at step 8."
    )


def test_steps_that_a_seed_lacks_are_not_compared_with_steps_of_all() -> None:
    """Before, the peak was of one seed, the end of the other, and 24 heads became 12."""
    about = {"site": "block.0", "layer": 0, "metric": "mean_cosine"}
    steps = {0: (0, 8, 64), 1: (0, 16, 64, 128)}
    rows = [
        Row(step=step, seed=seed, value=0.9 if step == 16 else 0.2, **about) for seed in steps for step in steps[seed]
    ]
    heads = {"site": "block.0.head.0", "layer": 0, "head": 0, "metric": "query_key_cosine", "value": 0.9}
    rows += [Row(step=step, seed=seed, null_sd=0.1, **heads) for seed in steps for step in steps[seed]]
    told = training_verdict(rows)
    assert told.startswith(
        "The highest average cosine of a block (mean of 2 seeds) is 0.20 at step 0 and 0.20 at step 64;"
    )
    assert "2 → 2 of 2" in told


# -- sweeps ------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def series(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("training")
    for step in STEPS:
        zoo.save("bert", folder / f"checkpoint-{step}", seed=step)
    return folder


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("data") / "lines.txt"
    words = stand_in_processors.PASSAGE.split()
    path.write_text("\n".join(" ".join(words[i : i + 9]) for i in range(0, 60, 4)) + "\n")
    return path


@pytest.fixture(scope="module")
def settings(series: Path, text: Path) -> Callable[..., SweepSettings]:
    given = {"series": str(series), "data": [str(text)], "documents": "lines", "sample": 16}
    return lambda **others: SweepSettings(**{**given, **others})


@pytest.fixture(scope="module")
def swept(settings: Callable[..., SweepSettings], tmp_path_factory: pytest.TempPathFactory) -> Measurement:
    return perform("sweep", settings(), out=tmp_path_factory.mktemp("swept") / "run")


def values(measurement: Measurement) -> dict[tuple, tuple]:
    return {
        (row.step, row.seed, row.site, row.metric, row.positions, row.at): (
            row.value,
            row.low,
            row.high,
            row.null,
            row.n,
        )
        for row in measurement.rows
    }


def test_every_step_has_the_numbers_of_a_measurement_of_its_own(
    swept: Measurement, series: Path, text: Path, tmp_path: Path
) -> None:
    place, data = str(series / "checkpoint-8"), {"data": [str(text)], "documents": "lines"}
    hidden = perform("measure", {"models": [place], "spectrum": False, "neighbours": False, **data})
    attention = perform("attention", {"model": place, **data})
    found = {key[2:]: value for key, value in values(swept).items() if key[0] == 8}
    expected = {key[2:]: value for key, value in {**values(hidden), **values(attention)}.items()}
    shared = set(found) & set(expected)
    metrics = {key[1] for key in shared}
    assert {"mean_cosine", "query_key_cosine", "entropy", "salience_share", "sink_epsilon"} <= metrics
    assert set(found) <= set(expected)
    for key in shared:
        assert [v is None for v in found[key]] == [v is None for v in expected[key]], key
        assert [v for v in found[key] if v is not None] == pytest.approx(
            [v for v in expected[key] if v is not None],
            rel=1e-3,
            abs=1e-5,  # attention is computed by another kernel
        ), key


def test_the_run_holds_all_steps_and_their_planes(swept: Measurement) -> None:
    assert swept.run is not None
    assert {row.step for row in swept.rows} == set(STEPS)
    assert not (swept.run.folder / "partial").exists()
    arrays = swept.run.arrays()
    assert arrays["seed-None/steps"].tolist() == list(STEPS)
    assert arrays["seed-None/block.2/union/query_points"].shape == (3, zoo.HEADS, 16, 2)
    checkpoints = swept.run.manifest["model"]["checkpoints"]
    assert len({one["sha256"] for one in checkpoints}) == 3
    assert "16" in str(swept.verdict)
    assert swept.notes == ()


def test_missing_broken_and_equal_checkpoints_are_told_and_the_sweep_goes_on(
    series: Path, settings: Callable[..., SweepSettings], tmp_path: Path
) -> None:
    folder = tmp_path / "training"
    shutil.copytree(series, folder)
    shutil.copytree(series / "checkpoint-0", folder / "checkpoint-24")
    (folder / "checkpoint-32").mkdir()
    (folder / "checkpoint-40").mkdir()
    shutil.copy(series / "checkpoint-0/config.json", folder / "checkpoint-40")
    chosen = "0,8,12,24,32,40"
    result = perform("sweep", settings(series=str(folder), steps=chosen, sites=["hidden"]), out=tmp_path / "run")
    assert {row.step for row in result.rows} == {0, 8, 24}
    told = "\n".join(result.notes)
    assert "missing: step 12: no such checkpoint" in told
    assert "missing: step 32: no model in this folder" in told
    assert "missing: step 40: the folder has a config but no weights" in told
    assert "suspicious: step 0 and step 24 have equal weights" in told
    assert len(result.notes) == 4
    assert result.run is not None
    assert open_run(result.run.folder).manifest["notes"] == list(result.notes)


def test_a_diverged_checkpoint_is_told_and_the_sweep_goes_on(
    series: Path, settings: Callable[..., SweepSettings], tmp_path: Path
) -> None:
    folder = tmp_path / "training"
    shutil.copytree(series, folder)
    weights = load_file(folder / "checkpoint-8/model.safetensors")
    name = next(name for name in weights if name.endswith("layer.0.attention.self.query.weight"))
    weights[name][:] = np.nan
    save_file(weights, folder / "checkpoint-8/model.safetensors", {"format": "pt"})
    result = perform("sweep", settings(series=str(folder)))
    assert {row.step for row in result.rows} == {0, 16}
    assert any("missing: step 8: there is nothing to measure" in note for note in result.notes)
    for step in (0, 16):
        shutil.rmtree(folder / f"checkpoint-{step}")
    with pytest.raises(InputError, match="nothing to measure"):
        perform("sweep", settings(series=str(folder)))


def test_a_checkpoint_of_other_heads_has_rows_and_no_planes(
    series: Path, settings: Callable[..., SweepSettings], tmp_path: Path
) -> None:
    folder = tmp_path / "training"
    shutil.copytree(series, folder)
    config = json.loads((folder / "checkpoint-8/config.json").read_text())
    fewer = {**config, "num_attention_heads": config["num_attention_heads"] // 2}
    (folder / "checkpoint-8/config.json").write_text(json.dumps(fewer))
    result = perform("sweep", settings(series=str(folder), sites=["attention"]))
    assert {row.step for row in result.rows} == set(STEPS)
    assert not any("query_mean" in name for name in result.arrays)
    assert any(note.startswith("no planes of queries and keys at block.0") for note in result.notes)


def test_seeds_are_kept_apart(series: Path, settings: Callable[..., SweepSettings], tmp_path: Path) -> None:
    folder = tmp_path / "training"
    for seed, step, source in ((0, 0, 0), (0, 8, 8), (1, 0, 16)):
        shutil.copytree(series / f"checkpoint-{source}", folder / f"seed-{seed}" / f"checkpoint-{step}")
    result = perform("sweep", settings(series=str(folder), sites=["attention"]), out=tmp_path / "run")
    assert {(row.seed, row.step) for row in result.rows} == {(0, 0), (0, 8), (1, 0)}
    assert result.notes == ("missing: step 8 of seed 1: no such checkpoint",)
    assert result.run is not None
    arrays = result.run.arrays()
    assert arrays["seed-0/block.0/query_mean"].shape[0] == 2
    assert arrays["seed-1/block.0/query_mean"].shape[0] == 1


def test_a_series_that_cannot_be_opened_and_unknown_sites_are_refused(
    settings: Callable[..., SweepSettings], tmp_path: Path
) -> None:
    (tmp_path / "training/checkpoint-1").mkdir(parents=True)
    with pytest.raises(ModelError, match="no checkpoint of the series could be measured"):
        perform("sweep", settings(series=str(tmp_path / "training")), out=tmp_path / "run")
    with pytest.raises(UsageError, match='did you mean "hidden"'):
        perform("sweep", {"series": "embedded", "sites": ["hiden"]}, out=tmp_path / "other")
