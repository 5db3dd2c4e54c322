"""Interventions: exact no-ops where theory says so, real effects where it does not, and the model left as it was."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import cases
import zoo
from anisoscope.capture.output import batch_positions
from anisoscope.capture.sites import Site, find_sites
from anisoscope.errors import UsageError
from anisoscope.inputs.sources import Document, MemorySource
from anisoscope.models.batches.plan import Batch, make_batches
from anisoscope.models.fingerprint import module_fingerprint
from anisoscope.models.open import OpenModel, open_model
from anisoscope.runs.measurement import Measurement
from anisoscope.runs.perform import perform
from anisoscope.runs.settings import Machine
from anisoscope.runs.store import open_run
from anisoscope.runs.table import Row
from anisoscope.runs.work import passes
from anisoscope.studies.intervene import FACTORS, story, verdict
from anisoscope.studies.intervene.edits import Intervention, Means, _shifting, applied, editing
from anisoscope.studies.intervene.measuring import MeanSums, ShiftSums, add_means, add_shifts
from anisoscope.studies.intervene.task import Task, make_task

TEXT = "the cat sat on the mat and looked at the small bird that sang in the old tree by the river "


@pytest.fixture(scope="module", params=["bert", "gpt2", "llama"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> OpenModel:
    folder = tmp_path_factory.mktemp(request.param)
    zoo.save(request.param, folder)
    return open_model(folder)


def texts() -> list[Document]:
    words = TEXT.split()
    rng = np.random.default_rng(0)
    return [Document(f"text {i}", " ".join(rng.permutation(words))) for i in range(12)]


def batches(model: OpenModel):
    return make_batches(model, MemorySource(texts(), modality="text", name="small texts"), length=16)


def intervene(model: OpenModel, **settings: Any) -> Measurement:
    """The study of a model in memory."""
    given = {"models": [model.module], "processor": model.processor, "data": texts()}
    return perform("intervene", {"model": "m", "length": 16, **settings}, given=given)


def value(found: Measurement, site: str, metric: str) -> float:
    number = found.value(metric, site=site)
    assert number is not None
    return number


def blocks_of(model: OpenModel) -> list[Site]:
    return [site for site in find_sites(model.module) if site.kind == "block"]


def tasks(model: OpenModel) -> list[Task]:
    return [make_task(model, batch) for _, batch in batches(model)]


def means_of(model: OpenModel, some: list[Task], **options: Any) -> Means:
    sums, blocks = MeanSums(), blocks_of(model)
    for task in some:
        add_means(sums, model, task, blocks, **options)
    return sums.means(blocks, before_rotary=options.get("before_rotary", False))


def shifts_of(model: OpenModel, some: list[Task], factor: float, means: Means) -> dict[str, torch.Tensor]:
    sums = ShiftSums()
    for task in some:
        add_shifts(sums, model, task, blocks_of(model), {"wanted": (factor, means.hidden)})
    return sums.shifts("wanted")


def states(model: OpenModel, name: str | None, *, before_rotary: bool = False) -> dict[str, torch.Tensor]:
    """What each block hands on under an intervention, in one batch of all windows, after the first position."""
    (task,) = tasks(model)
    blocks = blocks_of(model)
    means = means_of(model, [task], before_rotary=before_rotary)
    shifts = shifts_of(model, [task], FACTORS[name], means) if name in FACTORS else {}
    change = Intervention(name or "untouched", means, shifts, means.hidden)
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


def test_a_batch_of_first_positions_alone_leaves_the_shifts_as_they_are(model: OpenModel) -> None:
    """Before, one text of a single token made every number of the interventions on states missing."""
    (task,) = tasks(model)
    alone = make_task(model, cut_to_first(task.batch))
    means = means_of(model, [task])
    for site, shift in shifts_of(model, [task, alone], 0.0, means).items():
        torch.testing.assert_close(shift, shifts_of(model, [task], 0.0, means)[site], rtol=0, atol=0)


def cut_to_first(batch: Batch) -> Batch:
    """The first position of every window."""
    inputs = {name: value[:, :1] for name, value in batch.inputs.items()}
    return replace(batch, inputs=inputs, valid=batch.valid[:, :1], special=batch.special[:, :1])


def test_the_first_position_is_neither_counted_nor_moved() -> None:
    change = _shifting({"block.0": torch.tensor([1.0, -2.0])})
    state = torch.randn(2, 3, 2)
    moved = change(Site("block.0", "h.0", "block"), state)
    torch.testing.assert_close(moved[:, 0], state[:, 0], atol=0, rtol=0)
    torch.testing.assert_close(moved[:, 1:] - state[:, 1:], torch.tensor([1.0, -2.0]).expand(2, 2, 2))


def test_a_factor_of_one_shifts_nothing_at_all(model: OpenModel) -> None:
    some = tasks(model)
    shifts = shifts_of(model, some, 1.0, means_of(model, some, attention=False))
    assert shifts
    assert all(not shift.any() for shift in shifts.values())


def test_the_control_turns_all_blocks_alike(model: OpenModel) -> None:
    means = means_of(model, tasks(model))
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
    means = means_of(model, [task], before_rotary=True)
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
    config = AlbertConfig(**zoo.sizes(layers=3, embedding_size=16, vocab_size=600))
    model = open_model(AlbertModel(config), processor=open_model(tmp_path).processor)
    for state in states(model, "mean_hidden").values():
        assert state.mean(0).abs().max() < 1e-5


def test_every_change_has_an_interval_and_the_untouched_model_has_none_to_tell(model: OpenModel) -> None:
    rows = intervene(model, what=["mean_query"])
    for metric in ("entropy_normalised", "max_probability", "sink_share", "last_cosine"):
        found = next(row for row in rows.rows if (row.site, row.metric) == ("mean_query", f"{metric}_change"))
        assert found.low is not None
        assert found.low <= found.value <= found.high  # pyright: ignore
        assert value(rows, "untouched", f"{metric}_change") == 0
        before, after = value(rows, "untouched", metric), value(rows, "mean_query", metric)
        assert found.value == pytest.approx(after - before, abs=1e-9)
    assert str(rows.verdict).startswith("The average cosine at the last block of the untouched model is ")


def test_an_encoder_decoder_is_asked_nothing(tmp_path: Path) -> None:
    zoo.save("t5", tmp_path)
    import transformers

    body = open_model(tmp_path)
    network = transformers.T5ForConditionalGeneration(body.module.config)  # pyright: ignore[reportArgumentType]  # a T5Config
    model = open_model(network, processor=body.processor)
    rows = intervene(model, what=["mean_key"], layers="encoder.block.*")
    assert not [row for row in rows.rows if row.metric in ("loss", "kl")]
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
    rows = intervene(model, what=["mean_query", "final_norm_bias", "mean_hidden"])
    assert module_fingerprint(model.module) == before
    assert config._attn_implementation == implementation
    assert {"untouched", "mean_hidden", "mean_hidden.control"} <= {row.site for row in rows.rows}


def test_removing_the_mean_state_takes_the_cosine_of_the_last_block_down(model: OpenModel) -> None:
    rows = intervene(model, what=["mean_hidden"], layers=blocks_of(model)[0].name)
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
    rows = intervene(model, what=["mean_key"])
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
    with pytest.raises(UsageError, match="what"):
        intervene(model, what=["lobotomy"])


def test_what_a_model_cannot_have_is_said(tmp_path: Path) -> None:
    zoo.save("bert", tmp_path)
    found = intervene(open_model(tmp_path), what=["final_norm_bias"])
    assert {row.site for row in found.rows} == {"untouched"}
    assert any("final_norm_bias" in note for note in found.notes)


def test_inputs_are_brought_to_the_model(model: OpenModel) -> None:
    """By the one place that knows its device, precision and cache; labels follow the logits."""
    seen: list[dict[str, Any]] = []
    hook = model.module.register_forward_pre_hook(lambda _, __, given: seen.append(given), with_kwargs=True)
    intervene(model, what=["mean_hidden"])
    hook.remove()
    takes_cache = "use_cache" in inspect.signature(model.module.forward).parameters
    assert len(seen) == 1 + 3 + 3  # means, shifts, outcomes of one batch
    assert all(given.get("use_cache", not takes_cache) is not takes_cache for given in seen)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A causal model with its head, and a text."""
    root = tmp_path_factory.mktemp("headed")
    zoo.save("gpt2", root / "gpt2")
    (root / "lines.txt").write_text("\n".join(document.text for document in texts()))
    return root


def asked(folder: Path) -> dict[str, Any]:
    what = ["mean_query", "mean_hidden", "top_components"]
    return {"model": str(folder / "gpt2"), "data": [str(folder / "lines.txt")], "documents": "lines", "what": what}


@contextmanager
def forwards(most: int | None = None) -> Iterator[list[int]]:
    """Within this context the forward passes of the model are counted; one more than `most` is a kill."""
    from transformers import GPT2Model

    done: list[int] = []
    forward = GPT2Model.forward

    def counting(self: Any, *args: Any, **given: Any) -> Any:
        if len(done) == most:
            raise KeyboardInterrupt
        done.append(1)
        return forward(self, *args, **given)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(GPT2Model, "forward", counting)
        patch.setattr(passes, "SAVE_EVERY", -1.0)
        patch.setattr(passes, "_SAVING_SHARE", float("inf"))
        yield done


SMALL_BATCHES = Machine(batch_tokens=64)


@pytest.fixture(scope="module")
def whole(folder: Path) -> Measurement:
    """The study in twelve batches: a forward pass each for the means, three for the shifts, seven for the outcomes."""
    with forwards() as done:
        found = perform("intervene", asked(folder), machine=SMALL_BATCHES)
    assert len(done) == 12 * (1 + 3 + 7)
    return found


@pytest.mark.parametrize(("means", "shifts", "outcomes"), [(5, 0, 0), (12, 16, 0), (12, 36, 45)])
def test_every_pass_goes_on_after_a_kill_with_equal_numbers(
    folder: Path, whole: Measurement, tmp_path: Path, means: int, shifts: int, outcomes: int
) -> None:
    machine, killed_after = SMALL_BATCHES, means + shifts + outcomes
    with forwards(killed_after), pytest.raises(KeyboardInterrupt):
        perform("intervene", asked(folder), machine=machine, out=tmp_path / "run")
    with forwards() as again:
        resumed = perform("intervene", asked(folder), machine=machine, out=tmp_path / "run")
    assert [replace(row, run="") for row in resumed.rows] == list(whole.rows)
    assert len(again) == 12 * 11 - killed_after + shifts % 3 + outcomes % 7  # only the batch that was cut short


def test_shards_are_refused(folder: Path) -> None:
    with pytest.raises(UsageError, match="no shards"):
        perform("intervene", asked(folder), machine=Machine(shard="0/2"))


def test_the_story_has_one_line_per_intervention(folder: Path) -> None:
    found = perform("intervene", asked(folder))
    told = story(found.rows)
    (table,) = told.tables
    assert [cells[0] for cells in table.cells] == ["mean_query", "mean_hidden", "top_components"]
    assert list(table.columns[:4]) == ["intervention", "loss", "control", "KL"]
    control = value(found, "mean_hidden.control", "loss_change")
    assert table.cells[1][2].rstrip("* ") == f"{round(control, 4):+.4f}"
    widths = [max(map(len, column)) for column in zip(table.columns, *table.cells, strict=True)]
    assert sum(widths) + 2 * len(widths) <= 80
    assert [cells[0] for cells in told.more[0].cells] == [f"{cells[0]}.control" for cells in table.cells]
    assert str(found.verdict).startswith(
        f"The loss of the untouched model is {value(found, 'untouched', 'loss'):.3f} nats; furthest from the control: "
    )


def test_the_sentence_tells_what_does_most_beyond_its_control() -> None:
    changes = {"mean_query": (4.7, 4.2), "drift@0.5": (13.1, 5.1), "top_components": (5.6, 0.2), "drift@2": (None, 9.4)}
    rows = [Row(model="m", site="untouched", metric="loss", value=3.26)]
    for name, pair in changes.items():
        for site, change in zip((name, f"{name}.control"), pair, strict=True):
            rows.append(Row(model="m", site=site, metric="loss_change", value=change))
    rows.append(Row(model="m", site="mean_key", metric="kl", value=7.3e-10))
    assert verdict(rows) == (
        "The loss of the untouched model is 3.260 nats; furthest from the control: drift@0.5 +13.100 (control +5.100), "
        "top_components +5.600 (control +0.200); the mean key is invisible to softmax (KL 7.3e-10 nats)."
    )


def test_two_processes_find_what_one_does(folder: Path, tmp_path: Path) -> None:
    """With one window per batch nothing depends on who runs which."""
    settings, machine = asked(folder), Machine(batch_tokens=1)
    words = ["intervene", settings["model"], "--data", settings["data"][0], "--documents", "lines", "--no-figures"]
    words += ["--what", ",".join(settings["what"]), "--batch-tokens", "1", "--out", str(tmp_path / "run")]
    ended = cases.run_ranks(words, processes=2)
    assert [one.code for one in ended] == [0, 0], ended
    alone, shared = perform("intervene", settings, machine=machine).rows, open_run(tmp_path / "run").rows()
    assert [(row.site, row.metric, row.n) for row in shared] == [(row.site, row.metric, row.n) for row in alone]
    np.testing.assert_allclose([row.value for row in shared], [row.value for row in alone], atol=1e-9)
