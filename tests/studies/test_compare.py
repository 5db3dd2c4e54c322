"""Two runs compared: nothing is found where nothing changed, and a change is found where there is one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import anisoscope
import zoo
from anisoscope.errors import UsageError
from anisoscope.runs.measurement import Measurement
from anisoscope.runs.table import Row

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


def test_identical_runs_differ_by_nothing_with_intervals_of_no_width(original):
    found = anisoscope.compare(original, measured(zoo.module("gpt2")))
    rows = [row for row in found.rows if "paired by" in row.note]
    assert {row.metric for row in rows} >= {"mean_cosine", "mean_cosine_inter", "drift_norm", "drift_ratio"}
    assert list(chosen(found)) == ["embeddings", "block.0", "block.1", "block.2", "final_norm"]
    assert {(row.value, row.low, row.high) for row in rows} == {(0.0, 0.0, 0.0)}
    assert {row.value for row in found.rows} == {0.0}
    assert found.verdict.startswith("no average cosine changed")


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


def test_intervals_of_the_spectrum_are_not_paired_and_say_so(original):
    row = chosen(anisoscope.compare(original, measured(perturbed(1.0))), "isoscore")["block.1"]
    assert row.note.endswith("not paired")
    ends = [next(r for r in original.rows if r.site == "block.1" and r.metric == "isoscore")]
    if ends[0].low is not None:
        assert row.high - row.low > (ends[0].high - ends[0].low) / 2


def test_other_data_is_not_paired_and_a_note_says_so(original):
    found = anisoscope.compare(original, measured(zoo.module("gpt2"), texts(seed=1)))
    assert {row.low for row in chosen(found).values()} == {None}
    assert any("different data" in note for note in found.notes)
    assert any(row.value != 0 for row in chosen(found).values())


def test_only_sites_of_both_are_compared(original):
    found = anisoscope.compare(original, measured(zoo.module("gpt2"), sites=["block.1", "final_norm"]))
    assert list(chosen(found)) == ["block.1", "final_norm"]


def test_runs_without_a_common_site_are_refused(original):
    other = anisoscope.measure_vectors(np.random.default_rng(0).standard_normal((200, 8)))
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
