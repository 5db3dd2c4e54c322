"""Small synthetic runs of every kind, for tests of reports: shapes and names are real, numbers are made up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from anisoscope.runs.array_names import TEXT_OF, pack_texts
from anisoscope.runs.store import Run, write_run
from anisoscope.runs.table import Row
from anisoscope.studies.gate.rules import Rule, judge

PER_SITE = {
    "mean_cosine_inter": 0.9,
    "mean_cosine_intra": 1.1,
    "resultant": 0.8,
    "drift_ratio": 0.95,
    "rayleigh_p": 0.01,
    "isoscore": 0.3,
    "effective_rank": 60.0,
    "pc1_share": 0.2,
    "twonn": 12.0,
}


def layers_run(folder: Path, models: tuple[str, ...] = ("org/alpha", "org/beta"), *, layers: int = 6) -> Run:
    """As `anisoscope measure` leaves it: sites of each model, three kinds of positions, tests over the layers."""
    rows: list[Row] = []
    for number, model in enumerate(models):
        sites = [("embeddings", None), *((f"block.{k}", k) for k in range(layers)), ("final_norm", layers - 1)]
        for place, (site, layer) in enumerate(sites):
            cosine = round(min(0.97, 0.05 + 0.6 * (number % 5 + 1) * place / (5 * len(sites))), 4)
            rows += site_rows(model, site, layer, cosine)
        for against in ("drift_norm", "drift_ratio"):
            for method in ("spearman", "pearson"):
                about = {"model": model, "site": "layers", "n": layers + 1, "null": 0.0}
                rows.append(Row(metric=f"{method}_{against}", value=0.9, **about))
                rows.append(Row(metric=f"{method}_{against}_p", value=0.003, **about))
    verdict = "drifted (4 of 8 sites); weakly anisotropic (4)"
    return write_run(
        folder,
        command="measure",
        settings={"models": list(models)},
        rows=rows,
        seconds=12.5,
        verdict=verdict,
        verdicts=verdicts_of(rows),
        protocol={model: {"pairs": "all pairs of different vectors", "specials": "keep"} for model in models},
        data={model: {"name": "text", "fingerprint": "ab" * 32} for model in models},
        notes=["one window was short"],
    )


def site_rows(model: str, site: str, layer: int | None, cosine: float, **more: object) -> list[Row]:
    """One site: cosines, drift, spectrum, the dimensions that carry the cosine, a verdict."""
    common = {"model": model, "site": site, "layer": layer, "n": 4096, "protocol": "all pairs", **more}
    rows = []
    for positions in ("all", "rest", "first"):
        shift = {"all": 0.0, "rest": -0.02, "first": 0.2}[positions]
        value = cosine + shift
        about = {**common, "positions": positions}
        ends = {"low": value - 0.02, "high": value + 0.02}
        rows.append(Row(metric="mean_cosine", value=value, null=0.0, **ends, **about))
        rows += [Row(metric=name, value=value * factor, null=0.001, **about) for name, factor in PER_SITE.items()]
        rows.append(Row(metric="drift_norm", value=3.0 + 10 * value, **about))
        rows.append(Row(metric="dimension", value=64.0, **about))
        rows.append(Row(metric="participation_ratio_unbiased", value=50 - 40 * cosine, null=64.0, **about))
        rows += [Row(metric="cosine_share", value=0.4 / (k + 1), at=float(7 * k), **about) for k in range(5)]
    return rows


def verdicts_of(rows: Sequence[Row]) -> list[dict[str, object]]:
    """The words on every site, at each step."""
    return [
        {
            "model": row.model,
            "site": row.site,
            "step": row.step,
            "words": ["drifted" if (row.value or 0.0) >= 0.1 else "weakly anisotropic"],
        }
        for row in rows
        if row.metric == "mean_cosine" and row.positions == "all"
    ]


LAYERS, HEADS = 3, 4  # of a series


def series_run(
    folder: Path,
    model: str = "org/series",
    *,
    steps: tuple[int, ...] = (0, 100, 1000, 5000),
    seeds: tuple[int | None, ...] = (None,),
    texts: Sequence[str] = (),
) -> Run:
    """As a sweep leaves it: sites and heads at every step, the planes of the heads, and texts of their points."""
    rows: list[Row] = []
    for time, step in enumerate(steps):
        for k in range(LAYERS):
            for seed in seeds:
                cosine = 0.05 + 0.1 * time + 0.05 * k + 0.01 * (seed or 0)
                rows += site_rows(model, f"block.{k}", k, cosine, step=step, seed=seed)
            rows += [row for head in range(HEADS) for row in _head_rows(model, k, head, time, step)]
    arrays = {"seed-0/steps": np.array(steps)} | _planes(len(steps), len(texts))
    if texts:
        arrays["texts"] = pack_texts(texts)
    about = {"command": "sweep", "settings": {"models": [model]}, "protocol": {}, "verdict": "heads turn"}
    return write_run(folder, rows=rows, arrays=arrays, verdicts=verdicts_of(rows), **about)


def _head_rows(model: str, layer: int, head: int, time: int, step: int) -> list[Row]:
    about = {"model": model, "layer": layer, "head": head, "step": step, "n": 900, "site": f"block.{layer}.head.{head}"}
    cosine = float(np.tanh((head - 1.5) * time / 3))
    bounds = {"low": cosine - 0.1, "high": cosine + 0.1, "null": 0.0}
    return [
        Row(metric="query_key_cosine", value=cosine, null_sd=0.25, **bounds, **about),
        Row(metric="entropy_normalised", value=0.9 - 0.1 * time, null=1.0, **about),
        Row(metric="salience_share", value=0.1 * time, **about),
    ]


def _planes(steps: int, texts: int) -> dict[str, np.ndarray]:
    """The paths of queries and keys in the plane of each head, some points, and the texts of the first points."""
    arrays: dict[str, np.ndarray] = {}
    rng = np.random.default_rng(0)
    for k in range(LAYERS):
        base = f"seed-0/block.{k}/union"
        arrays[f"{base}/share"] = np.tile([0.6, 0.3, 0.1], (HEADS, 1))
        for side, sign in (("query", 1.0), ("key", -1.0)):
            path = sign * np.arange(steps)[:, None, None] * np.array([1.0, 0.4]) * np.ones((1, HEADS, 1))
            arrays[f"{base}/{side}"] = np.repeat(path[:, :, None], 3, axis=2)  # (steps, heads, 3, 2)
            points = path[:, :, None] + rng.standard_normal((steps, HEADS, 30, 2))
            arrays[f"{base}/{side}_points"] = points.astype(np.float32)
            if texts:
                kept = np.full((steps, HEADS, 30), -1)
                kept[:, :, :texts] = np.arange(texts)
                arrays[TEXT_OF.format(points=f"{base}/{side}_points")] = kept
    return arrays


def heads_run(folder: Path, *, layers: int, heads: int) -> Run:
    """As `anisoscope attention` leaves it, of any size."""
    rng = np.random.default_rng(2)
    rows = [
        Row(
            model="org/large",
            site=f"block.{k}.head.{head}",
            layer=k,
            head=head,
            metric="query_key_cosine",
            value=float(rng.uniform(-1, 1)),
            null=0.0,
            n=900,
            null_sd=0.125,
        )
        for k in range(layers)
        for head in range(heads)
    ]
    return write_run(folder, command="attention", settings={}, rows=rows, protocol={}, verdict="many heads")


def block_run(folder: Path) -> Run:
    """As `anisoscope block` leaves it: a sweep over N, averages and draws, histograms of scores."""
    norms, rng, rows = (0.0, 1.0, 10.0, 40.0), np.random.default_rng(1), []
    for norm in norms:
        for site in ("input", "output"):
            for metric, value in (("mean_cosine", norm**2 / (norm**2 + 90)), ("mean_norm", 10 + norm)):
                about = {"model": "bert", "site": site, "metric": metric, "at": norm, "value": value, "n": 1024}
                rows.append(Row(**about, low=value - 0.01, high=value + 0.01, null=0.0, note="average of 2 draws"))
                rows += [Row(**about, seed=seed) for seed in range(2)]
    rows.append(Row(model="bert", site="output", metric="fixed_point", value=27.7, note="average curve"))
    edges = np.tile(np.linspace(-2, 2, 41), (2, len(norms), 1)) * (1 + np.arange(len(norms)))[None, :, None]
    counts = rng.integers(0, 90, (2, len(norms), 40))
    arrays = {"bert/norms": np.array(norms), "bert/scores_counts": counts, "bert/scores_edges": edges}
    return write_run(
        folder,
        command="block",
        settings={"arch": ["bert"]},
        rows=rows,
        arrays=arrays,
        protocol={},
        verdict="bert: output cosine above input cosine",
    )


def compare_run(folder: Path) -> Run:
    rows: list[Row] = []
    for k in range(5):
        by, site = 0.01 * k, f"block.{k}"
        rows.append(Row(site=site, metric="mean_cosine", value=by, low=by - 0.015, high=by + 0.015, null=0.0, n=99))
        sides = {"before": 0.1, "after": 0.1 + by}
        rows += [Row(site=site, metric=f"mean_cosine_{side}", value=value) for side, value in sides.items()]
    return write_run(
        folder,
        command="compare",
        settings={"first": "a", "second": "b"},
        rows=rows,
        protocol={},
        verdict="changed at 3 of 5 sites",
    )


def null_run(folder: Path) -> Run:
    edges = np.linspace(-1, 1, 201)
    rows = [
        Row(site="d=16", metric="cosine_sd", value=0.25, n=2),
        Row(site="d=16", metric="cosine_q95", value=0.41, n=2),
        Row(site="d=16", metric="mean_cosine", value=0.0, n=100),
    ]
    arrays = {"cosine": edges, "density.16": np.exp(-(edges**2) * 8)}
    return write_run(
        folder,
        command="null",
        settings={"dim": [16]},
        rows=rows,
        arrays=arrays,
        protocol={"law": "uniform"},
        verdict="isotropic, by construction",
    )


def advise_run(folder: Path) -> Run:
    rows = [
        Row(site=f"{name}.{code}", metric=metric, at=dims, value=value, low=low, high=high, n=500)
        for name in ("raw", "centred", "whitened")
        for code, bits in (("float32", 32), ("int8", 8), ("int4", 4), ("binary", 1))
        for dims in (64.0, 16.0)
        for metric, value, low, high in (
            ("neighbour_overlap", bits / 40, bits / 40 - 0.01, bits / 40 + 0.01),
            ("overlap_forecast", bits / 50, None, None),
            ("memory_per_million", dims * bits / 8000, None, None),
        )
    ]
    settings = {"files": ["x.npy"]}
    return write_run(folder, command="advise", settings=settings, rows=rows, protocol={}, verdict="8 bits keep 20 %")


def calibrate_run(folder: Path) -> Run:
    floors = {"raw": 0.6, "centred": 0.0}
    rows = []
    for site, floor in floors.items():
        rows.append(
            Row(site=site, metric="floor_mean", value=floor, low=floor - 0.01, high=floor + 0.01, null=0.0, n=500)
        )
        rows += [
            Row(site=site, metric="threshold", at=rate, value=floor + 0.3, null=0.2, n=500) for rate in (0.05, 0.01)
        ]
    rows += [Row(site="raw", metric="floor_percentile", at=at, value=at**2, n=500) for at in (0.05, 0.5)]
    return write_run(
        folder,
        command="calibrate",
        settings={"files": ["x.npy"]},
        rows=rows,
        arrays=_histograms(**floors),
        protocol={},
        verdict="unrelated pairs have cosine 0.60",
    )


def vectors_run(folder: Path, cosine: float = 0.4) -> Run:
    """As `anisoscope vectors` leaves it: one cloud, without layers."""
    rows = [row for row in site_rows("", "vectors", None, cosine) if row.positions == "all"]
    for level, place in (("05", -0.3), ("25", -0.1), ("50", 0.0), ("75", 0.1), ("95", 0.3)):
        rows.append(Row(site="vectors", metric=f"cosine_q{level}", value=cosine + place, null=place / 2, n=4096))
    rows = [replace(row, value=0.0) if row.metric == "rayleigh_p" else row for row in rows]
    about = {"verdict": "drifted", "verdicts": verdicts_of(rows), "arrays": _histograms(vectors=cosine)}
    return write_run(folder, command="vectors", settings={"files": ["x.npy"]}, rows=rows, protocol={}, **about)


def _histograms(**means: float) -> dict[str, np.ndarray]:
    edges = np.linspace(-1, 1, 201)
    middle = (edges[1:] + edges[:-1]) / 2
    found = {f"histogram.{name}": np.exp(-((middle - mean) ** 2) * 40) for name, mean in means.items()}
    return {"edges": edges, "null": np.exp(-(middle**2) * 50), **found}


def gate_run(folder: Path) -> Run:
    """As `anisoscope gate` leaves it."""
    rows, verdicts = judge(
        (Rule("mean_cosine", move=0.02), Rule("neighbour_overlap", at_least=0.95)),
        [
            Row(site="embedding", metric=metric, value=value, low=value - 0.01, high=value + 0.01, n=99)
            for metric, value in (("mean_cosine", 0.001), ("neighbour_overlap", 0.4))
        ],
    )
    about = {"verdict": "Fails: 1 of 2 rules", "verdicts": verdicts}
    return write_run(folder, command="gate", settings={}, rows=rows, protocol={}, **about)


def clouds_run(folder: Path) -> Run:
    """As `anisoscope vectors A --against B` leaves it."""
    cosines = {"vectors": "mean_cosine", "against": "mean_cosine", "pair": "cosine_between"}
    rows = [Row(site=site, metric=metric, value=0.3, null=0.0, n=99) for site, metric in cosines.items()]
    rows += [Row(site="pair", metric="axes_overlap", at=10.0, value=0.5, null=0.1)]
    return write_run(folder, command="vectors", settings={}, rows=rows, protocol={}, verdict="0.3 between the clouds")


def intervene_run(folder: Path, model: str = "org/gamma") -> Run:
    """As `anisoscope intervene` leaves it: each intervention and its control."""
    rows = [Row(model=model, site="untouched", metric="loss", value=1.7, n=99)]
    for site, change in (("untouched", 0.0), ("mean_query", 0.5), ("mean_key", 0.0), ("drift@2", 0.3)):
        sites = (site,) if site == "untouched" else (site, f"{site}.control")
        for place, name in enumerate(sites):
            value = change * (1 - 0.8 * place)
            rows.append(Row(model=model, site=name, metric="loss_change", value=value, null=0.0, n=99))
            rows.append(Row(model=model, site=name, metric="kl", value=value / 2, null=0.0, n=99))
    verdict = "loss 1.700 nats; change by mean_query +0.500"
    return write_run(folder, command="intervene", settings={"model": model}, rows=rows, protocol={}, verdict=verdict)


def variants_run(folder: Path) -> Run:
    """As `anisoscope variants` leaves it: arms with seeds, their means, differences from the control."""
    rows: list[Row] = []
    for arm, cosine in (("softmax", 0.4), ("gated", 0.2)):
        for metric, site, value in (("mean_cosine", "blocks", cosine), ("validation_loss", "", 2 + cosine)):
            about = {"model": arm, "site": site, "metric": metric}
            rows += [Row(**about, seed=seed, value=value + 0.01 * (seed - 1)) for seed in range(3)]
            rows.append(Row(**about, value=value, low=value - 0.03, high=value + 0.03, note="mean of 3 seeds"))
    common = {"model": "gated", "site": "blocks", "null": 0.0, "note": "minus softmax, paired by 3 seeds"}
    rows.append(Row(metric="mean_cosine_difference", value=-0.2, low=-0.25, high=-0.15, **common))
    verdict = "gated: mean cosine 0.200 (lower)"
    return write_run(folder, command="variants", settings={"arms": 2}, rows=rows, protocol={}, verdict=verdict)


def vocabulary_run(folder: Path) -> Run:
    """As `anisoscope vocabulary` leaves it: matrices of two checkpoints."""
    rows = [
        Row(model=model, site=site, step=step, metric=metric, value=value, null=0.9, n=260)
        for model, step in (("first", 0), ("last", 64))
        for site, value in (("vocabulary.input", 0.5), ("vocabulary.input.centred", 0.8))
        for metric in ("partition_both", "mean_cosine")
    ]
    arrays = {"texts": pack_texts(["a", "<b>"])}
    for step in (0, 64):
        points = f"{step}/vocabulary.input/points"
        arrays |= {points: np.array([[1, 4], [2, 5], [3, 6]], np.float32), TEXT_OF.format(points=points): np.arange(3)}
        arrays[TEXT_OF.format(points=points)][2] = -1
    about = {"command": "vocabulary", "settings": {"models": ["a"]}, "protocol": {}, "verdict": "I(W) = 0.5"}
    return write_run(folder, rows=rows, arrays=arrays, **about)


def every_run(folder: Path) -> list[Run]:
    """One run of each kind."""
    makers = (
        layers_run,
        series_run,
        block_run,
        compare_run,
        null_run,
        calibrate_run,
        advise_run,
        vectors_run,
        gate_run,
        intervene_run,
        variants_run,
        vocabulary_run,
    )
    return [make(folder / make.__name__.removesuffix("_run")) for make in makers]
