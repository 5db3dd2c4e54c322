"""Interventions: exact no-ops where theory says so, real effects where it does not, and the model left as it was."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import zoo
from anisoscope.capture.sites import Site, find_sites
from anisoscope.errors import UsageError
from anisoscope.inputs.sources import Document, MemorySource
from anisoscope.models.batches.plan import make_batches
from anisoscope.models.fingerprint import module_fingerprint
from anisoscope.models.open import OpenModel, open_model
from anisoscope.runs.table import Row
from anisoscope.studies.intervene.edits import (
    FACTORS,
    Intervention,
    _shifting,
    applied,
    editing,
    find_means,
    find_shifts,
)
from anisoscope.studies.intervene.outcomes import intervene
from anisoscope.studies.intervene.study import batch_positions, verdict
from anisoscope.studies.intervene.task import Task, make_task

TEXT = "the cat sat on the mat and looked at the small bird that sang in the old tree by the river "


@pytest.fixture(scope="module", params=["bert", "gpt2", "llama"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> OpenModel:
    folder = tmp_path_factory.mktemp(request.param)
    zoo.save(request.param, folder)
    return open_model(folder)


def batches(model: OpenModel):
    words = TEXT.split()
    rng = np.random.default_rng(0)
    texts = [Document(f"text {i}", " ".join(rng.permutation(words))) for i in range(12)]
    return make_batches(model, MemorySource(texts, modality="text", name="small texts"), length=16)


def value(rows: list[Row], site: str, metric: str) -> float:
    found = [row.value for row in rows if row.site == site and row.metric == metric]
    assert len(found) == 1
    assert found[0] is not None
    return found[0]


def blocks_of(model: OpenModel) -> list[Site]:
    return [site for site in find_sites(model.module) if site.kind == "block"]


def tasks(model: OpenModel) -> list[Task]:
    return [make_task(model, batch) for _, batch in batches(model)]


def states(model: OpenModel, name: str | None, *, before_rotary: bool = False) -> dict[str, torch.Tensor]:
    """What each block hands on under an intervention, in one batch of all windows, after the first position."""
    (task,) = tasks(model)
    blocks = blocks_of(model)
    means = find_means(model, [task], blocks, attention=True, before_rotary=before_rotary)
    wanted = {name: (FACTORS[name], means.hidden)} if name in FACTORS else {}
    shifts = find_shifts(model, [task], blocks, wanted)
    change = Intervention(name or "untouched", means, shifts.get(name or "", {}), means.hidden)
    found: dict[str, torch.Tensor] = {}

    def look(site: Site, state: torch.Tensor) -> torch.Tensor:
        found[site.name] = state[:, 1:][task.batch.valid[:, 1:]]
        return state

    with torch.inference_mode(), applied(model, change, blocks), editing(model.module, blocks, look):
        model.module(**task.inputs)
    return found


def last_state(model: OpenModel, name: str | None, *, before_rotary: bool = False) -> torch.Tensor:
    return list(states(model, name, before_rotary=before_rotary).values())[-1]


def test_the_mean_of_the_scored_keys_is_invisible_to_softmax(model: OpenModel) -> None:
    assert (last_state(model, "mean_key") - last_state(model, None)).abs().max() < 1e-5


def test_the_mean_query_and_the_mean_state_matter(model: OpenModel) -> None:
    untouched = last_state(model, None)
    for name in ("mean_query", "mean_hidden", "top_components", "drift@2"):
        assert (last_state(model, name) - untouched).abs().max() > 1e-4, name


@pytest.mark.parametrize("factor", [0.0, 0.5, 1.0, 2.0])
def test_drift_is_what_was_asked_for_after_every_block_and_not_less_with_depth(model: OpenModel, factor: float) -> None:
    name = {0.0: "mean_hidden", 1.0: None}.get(factor, f"drift@{factor:g}")
    untouched, found = states(model, None), states(model, name)
    for site, state in found.items():
        torch.testing.assert_close(state.mean(0), factor * untouched[site].mean(0), atol=2e-6, rtol=1e-4)


def test_the_first_position_is_neither_counted_nor_moved() -> None:
    change = _shifting({"block.0": torch.tensor([1.0, -2.0])})
    state = torch.randn(2, 3, 2)
    moved = change(Site("block.0", "h.0", "block"), state)
    torch.testing.assert_close(moved[:, 0], state[:, 0], atol=0, rtol=0)
    torch.testing.assert_close(moved[:, 1:] - state[:, 1:], torch.tensor([1.0, -2.0]).expand(2, 2, 2))


def test_a_factor_of_one_shifts_nothing_at_all(model: OpenModel) -> None:
    blocks, some = blocks_of(model), tasks(model)
    means = find_means(model, some, blocks, attention=False)
    shifts = find_shifts(model, some, blocks, {"same": (1.0, means.hidden)})["same"]
    assert all(not shift.any() for shift in shifts.values())


def test_the_control_turns_all_blocks_alike(model: OpenModel) -> None:
    means = find_means(model, tasks(model), blocks_of(model), attention=True)
    control = means.turned(seed=3)
    for side in ("hidden", "queries", "keys"):
        for site, mean in getattr(means, side).items():
            torch.testing.assert_close(getattr(control, side)[site].norm(dim=-1), mean.norm(dim=-1))
    first, *_, last = (torch.stack([part.hidden[site.name] for part in (means, control)]) for site in blocks_of(model))
    angles = (first * last).sum(-1)
    torch.testing.assert_close(angles[0], angles[1])
    assert (first[0] - first[1]).norm() > 0.1 * first[0].norm()


def test_means_before_rotation_are_those_of_the_projections(tmp_path: Path) -> None:
    zoo.save("llama", tmp_path)
    model = open_model(tmp_path)
    (task,) = tasks(model)
    means = find_means(model, [task], blocks_of(model), attention=True, before_rotary=True)
    flat = {site: means.queries[site.name].flatten() for site in blocks_of(model)}
    handles = [
        model.module.get_submodule(f"{site.path}.self_attn.q_proj").register_forward_hook(
            lambda _, __, output, mean=mean: output - mean
        )
        for site, mean in flat.items()
    ]
    with torch.inference_mode():
        expected = model.module(**task.inputs).last_hidden_state[task.batch.valid]
    for handle in handles:
        handle.remove()
    change = Intervention("mean_query", means)
    with torch.inference_mode(), applied(model, change, blocks_of(model)):
        found = model.module(**task.inputs).last_hidden_state[task.batch.valid]
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-4)
    assert (last_state(model, "mean_query") - last_state(model, "mean_query", before_rotary=True)).abs().max() > 1e-4
    assert (last_state(model, "mean_key", before_rotary=True) - last_state(model, None)).abs().max() > 1e-4


def test_one_module_that_runs_as_several_blocks_is_edited_once_a_block(tmp_path: Path) -> None:
    from transformers import AlbertConfig, AlbertModel

    torch.manual_seed(0)
    zoo.save("bert", tmp_path)
    config = AlbertConfig(
        vocab_size=600, embedding_size=16, hidden_size=16, num_hidden_layers=3, num_attention_heads=2,
        intermediate_size=32,
    )  # fmt: skip
    model = open_model(AlbertModel(config), processor=open_model(tmp_path).processor)
    for state in states(model, "mean_hidden").values():
        assert state.mean(0).abs().max() < 1e-5


def test_every_change_has_an_interval_and_the_untouched_model_has_none_to_tell(model: OpenModel) -> None:
    rows = intervene(model, batches(model), what=("mean_query",))
    for metric in ("entropy_normalised", "max_probability", "sink_share", "last_cosine"):
        found = next(row for row in rows if (row.site, row.metric) == ("mean_query", f"{metric}_change"))
        assert found.low is not None
        assert found.low <= found.value <= found.high  # pyright: ignore
        assert value(rows, "untouched", f"{metric}_change") == 0
        before, after = value(rows, "untouched", metric), value(rows, "mean_query", metric)
        assert found.value == pytest.approx(after - before, abs=1e-9)
    assert verdict(rows).startswith("average cosine at the last block")


def test_an_encoder_decoder_is_asked_nothing(tmp_path: Path) -> None:
    zoo.save("t5", tmp_path)
    import transformers

    body = open_model(tmp_path)
    network = transformers.T5ForConditionalGeneration(body.module.config)  # pyright: ignore[reportArgumentType]  # a T5Config
    model = open_model(network, processor=body.processor)
    rows = intervene(model, batches(model), what=("mean_key",), layers="encoder.block.*")
    assert not [row for row in rows if row.metric in ("loss", "kl")]
    assert value(rows, "mean_key", "last_cosine_change") == pytest.approx(0, abs=1e-5)


def test_batches_are_small_where_the_vocabulary_is_large() -> None:
    from transformers import GPT2Config, GPT2LMHeadModel, GPT2Model

    config = GPT2Config(vocab_size=50_000, n_embd=2, n_layer=1, n_head=1)
    assert batch_positions(GPT2LMHeadModel(config)) * 50_000 <= 2**26
    assert batch_positions(GPT2Model(config)) == 8192


def test_the_model_is_left_as_it_was(model: OpenModel) -> None:
    before = module_fingerprint(model.module)
    config: Any = model.module.config
    implementation = config._attn_implementation
    rows = intervene(model, batches(model), what=("mean_query", "final_norm_bias", "mean_hidden"))
    assert module_fingerprint(model.module) == before
    assert config._attn_implementation == implementation
    assert {"untouched", "mean_hidden", "mean_hidden.control"} <= {row.site for row in rows}


def test_removing_the_mean_state_takes_the_cosine_of_the_last_block_down(model: OpenModel) -> None:
    rows = intervene(model, batches(model), what=("mean_hidden",), layers=blocks_of(model)[0].name)
    assert value(rows, "mean_hidden", "last_cosine") < value(rows, "untouched", "last_cosine")


@pytest.mark.parametrize("name", ["bert", "gpt2"])
def test_the_loss_is_that_of_the_library(name: str, tmp_path) -> None:
    zoo.save(name, tmp_path)
    head = {"bert": "BertForMaskedLM", "gpt2": "GPT2LMHeadModel"}[name]
    import transformers

    body = open_model(tmp_path)
    torch.manual_seed(0)
    network = getattr(transformers, head)(body.module.config).eval()
    model = open_model(network, processor=body.processor)
    rows = intervene(model, batches(model), what=("mean_key",))
    assert value(rows, "mean_key", "kl") == pytest.approx(0.0, abs=1e-6)
    assert value(rows, "mean_key", "loss_change") == pytest.approx(0.0, abs=1e-5)
    if name == "gpt2":
        total, tokens = 0.0, 0
        for _, batch in batches(model):
            labels = torch.where(batch.valid & ~batch.special, batch.inputs["input_ids"], -100)
            with torch.inference_mode():
                loss = network(**batch.inputs, labels=labels).loss
            count = int((labels[:, 1:] >= 0).sum())
            total, tokens = total + float(loss) * count, tokens + count
        assert value(rows, "untouched", "loss") == pytest.approx(total / tokens, abs=1e-5)


def test_an_unknown_intervention_is_refused(model: OpenModel) -> None:
    with pytest.raises(UsageError, match="unknown intervention"):
        intervene(model, batches(model), what=("lobotomy",))
