"""The monitor inside a real Trainer: it measures what a fresh capture measures, and changes nothing."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch
from transformers import BertConfig, BertForMaskedLM, Trainer, TrainerCallback, TrainingArguments
from typer.testing import CliRunner

import zoo
from anisoscope import measure
from anisoscope.cli.main import app
from anisoscope.errors import ModelError, StoreError, UsageError
from anisoscope.inference.thresholds import RULES
from anisoscope.report.figures.sweep import figures
from anisoscope.report.page.data import page_data
from anisoscope.runs.perform import plan_of
from anisoscope.runs.store import open_run
from anisoscope.watch.monitor import AnisotropyMonitor, Band
from anisoscope.watch.rules import alarms_of

TINY = zoo.sizes(vocab_size=50)


def model(seed: int = 0) -> BertForMaskedLM:
    torch.manual_seed(seed)
    return BertForMaskedLM(BertConfig(**TINY, max_position_embeddings=32))


def probe() -> dict[str, torch.Tensor]:
    ids = torch.randint(50, (6, 12), generator=torch.Generator().manual_seed(1))
    mask = torch.ones_like(ids)
    mask[0, 8:] = 0
    return {"input_ids": ids, "attention_mask": mask}


class Sentences(torch.utils.data.Dataset):
    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        ids = torch.randint(50, (12,), generator=torch.Generator().manual_seed(index))
        return {"input_ids": ids, "labels": ids}


class Seen(TrainerCallback):
    """What a reporting integration would get."""

    def __init__(self) -> None:
        self.names: set[str] = set()

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        self.names |= set(logs or {})


class KilledAt(TrainerCallback):
    def __init__(self, step: int) -> None:
        self.step = step

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == self.step:
            raise KeyboardInterrupt


def train(
    folder: Path,
    network: BertForMaskedLM,
    monitor: AnisotropyMonitor | None,
    *,
    steps: int = 8,
    callbacks: Sequence[TrainerCallback] = (),
    resume: str | None = None,
    **options: Any,
) -> Seen:
    arguments = TrainingArguments(
        output_dir=str(folder),
        max_steps=steps,
        per_device_train_batch_size=4,
        learning_rate=1e-3,
        report_to=[],
        disable_tqdm=True,
        use_cpu=True,
        logging_steps=100,
        seed=0,
        **{"save_strategy": "no", **options},
    )
    seen = Seen()
    trainer = Trainer(network, arguments, train_dataset=Sentences(), callbacks=[seen, *callbacks])
    if monitor is not None:
        monitor.attach(trainer)
    trainer.train(resume_from_checkpoint=resume)
    return seen


def test_it_logs_through_the_trainer_and_keeps_a_run(tmp_path: Path) -> None:
    monitor = AnisotropyMonitor(probe(), out=tmp_path / "watch")
    seen = train(tmp_path, model(), monitor)
    assert {"anisotropy/block.1/mean_cosine", "anisotropy/block.0/query_key_cosine"} <= seen.names
    run = open_run(tmp_path / "watch")
    assert sorted({row.step for row in run.rows(metric="mean_cosine", site="block.1")}) == [0, 1, 2, 4, 8]


def test_a_training_is_the_same_with_and_without_it(tmp_path: Path) -> None:
    watched, alone = model(), model()
    train(tmp_path, watched, AnisotropyMonitor(probe(), every=1))
    train(tmp_path, alone, None)
    for mine, other in zip(watched.state_dict().values(), alone.state_dict().values(), strict=True):
        assert torch.equal(mine, other)
    assert watched.training == alone.training


def test_the_cosine_is_that_of_all_pairs_of_real_positions() -> None:
    network, batch = model().eval(), probe()
    monitor = AnisotropyMonitor(batch, attention=False)
    found = monitor.observe(network, 3)["anisotropy/block.1/mean_cosine"]
    with torch.no_grad():
        states = network(**batch, output_hidden_states=True).hidden_states[-1].double()
    units = torch.nn.functional.normalize(states[batch["attention_mask"].bool()], dim=1)
    gram = units @ units.T
    n = len(units)
    assert found == pytest.approx(float((gram.sum() - n) / (n * (n - 1))), abs=1e-9)


def test_the_default_cadence_doubles_and_then_is_even() -> None:
    monitor = AnisotropyMonitor(probe())
    assert [step for step in range(5000) if monitor.due(step)] == [0, *(2**k for k in range(11)), 2048, 3072, 4096]
    assert [step for step in range(9) if AnisotropyMonitor(probe(), every=3).due(step)] == [0, 3, 6]
    assert [step for step in range(9) if AnisotropyMonitor(probe(), steps=[5, 2]).due(step)] == [2, 5]


def test_frozen_parts_autocast_and_wrappers_do_not_matter() -> None:
    network = model().train()
    network.bert.embeddings.eval()
    alone = AnisotropyMonitor(probe()).observe(network, 0)
    assert not network.bert.embeddings.dropout.training
    assert network.bert.encoder.layer[0].output.dropout.training
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert AnisotropyMonitor(probe()).observe(network, 0) == alone
    assert AnisotropyMonitor(probe()).observe(torch.compile(network, backend="eager"), 0) == alone
    assert all(parameter.requires_grad for parameter in network.parameters())


def test_pictures_are_probes_too() -> None:
    network = zoo.module("vit", head=False).train()
    found = AnisotropyMonitor(None, zoo.processor("vit"), limit=3).observe(network, 0)
    again = measure(network, None, processor=zoo.processor("vit"), limit=3, spectrum=False, neighbours=False)
    assert found["anisotropy/block.0/mean_cosine"] == pytest.approx(
        again.value("mean_cosine", site="block.0"), abs=1e-6
    )


def test_a_model_without_attention_is_watched_without_it() -> None:
    network, processor = zoo.module("resnet"), zoo.processor("resnet")
    with pytest.raises(ModelError, match="no queries and keys"):
        AnisotropyMonitor(None, processor, limit=2).observe(network, 0)
    assert "anisotropy/stage.0.block.0/mean_cosine" in AnisotropyMonitor(
        None, processor, limit=2, attention=False
    ).observe(network, 0)


def test_texts_need_their_tokenizer() -> None:
    with pytest.raises(UsageError, match="tokenizer"):
        AnisotropyMonitor(["a text"])


# -- the run folder ----------------------------------------------------------------------------------------------------


def test_the_run_is_drawn_and_told_like_that_of_a_sweep(tmp_path: Path) -> None:
    train(tmp_path, model(), AnisotropyMonitor(probe(), every=2, out=tmp_path / "watch"))
    run = open_run(tmp_path / "watch")
    assert re.search(
        r"^The highest average cosine of a block is \S+ at step 0\b.* at step 8; heads", run.manifest["verdict"]
    )
    drawn = figures(run)
    assert {
        "query-key-clouds",
        "mean-path-common",
        "alignment-by-step",
        "mean-paths-on-queries",
        "cosine-by-step",
    } <= set(drawn)
    for draw in drawn.values():
        plt.close(draw(run))
    page = page_data([run])
    assert {plane["site"] for plane in page["pictures"]["series"]} == {"block.0", "block.1"}
    assert page["pictures"]["series"][0]["steps"] == [0, 2, 4, 8]
    done = CliRunner().invoke(app, ["report", str(run.folder), "-o", str(tmp_path / "page.html")])
    assert done.exit_code == 0, done.output
    assert "mean_cosine" in (tmp_path / "page.html").read_text(encoding="utf-8")


def test_a_training_that_goes_on_from_a_checkpoint_goes_on_with_its_run(tmp_path: Path) -> None:
    options = {"save_strategy": "steps", "save_steps": 2}
    train(tmp_path / "whole", model(), AnisotropyMonitor(probe(), every=2, out=tmp_path / "whole/watch"), **options)
    killed = AnisotropyMonitor(probe(), every=2, out=tmp_path / "parts/watch")
    with pytest.raises(KeyboardInterrupt):
        train(tmp_path / "parts", model(), killed, callbacks=[KilledAt(7)], **options)
    again = AnisotropyMonitor(probe(), every=2, out=tmp_path / "parts/watch")
    train(tmp_path / "parts", model(1), again, resume=str(tmp_path / "parts/checkpoint-4"), **options)
    whole, parts = open_run(tmp_path / "whole/watch"), open_run(tmp_path / "parts/watch")
    assert [replace(row, run="") for row in parts.rows()] == [replace(row, run="") for row in whole.rows()]
    arrays, others = whole.arrays(), parts.arrays()
    assert set(arrays) == set(others)
    for name in arrays:
        np.testing.assert_array_equal(arrays[name], others[name])


def test_the_folder_of_something_else_or_of_another_watch_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "letters").mkdir()
    (tmp_path / "letters/dear.txt").write_text("Dear,")
    with pytest.raises(StoreError, match="not a run"):
        AnisotropyMonitor(probe(), out=tmp_path / "letters").observe(model(), 0)
    AnisotropyMonitor(probe(), every=2, out=tmp_path / "watch").observe(model(), 0)
    with pytest.raises(StoreError, match="other settings"):
        AnisotropyMonitor(probe(), every=3, out=tmp_path / "watch").observe(model(), 0)
    other = {"input_ids": probe()["input_ids"].flip(0)}
    with pytest.raises(StoreError, match="probe was"):
        AnisotropyMonitor(other, every=2, out=tmp_path / "watch").observe(model(), 2)
    AnisotropyMonitor(probe(), every=3, out=tmp_path / "watch", existing="replace").observe(model(), 9)
    assert {row.step for row in open_run(tmp_path / "watch").rows()} == {9}
    assert [file.name for file in (tmp_path / "watch/sums").iterdir()] == ["step-9.safetensors"]


def test_a_run_is_shown_by_step_and_cannot_be_repeated_from_its_file(tmp_path: Path) -> None:
    train(tmp_path, model(), AnisotropyMonitor(probe(), every=2, out=tmp_path / "watch"))
    shown = CliRunner().invoke(app, ["show", str(tmp_path / "watch")])
    assert shown.exit_code == 0, shown.output
    lines = [line.split() for line in shown.output.splitlines()]
    assert [line[0] for line in lines if len(line) == 6 and line[0].isdecimal()] == ["0", "2", "4", "6", "8"]
    assert len(lines) < 40
    with pytest.raises(UsageError, match="objects in memory"):
        plan_of(tmp_path / "watch" / "run.toml")


def test_a_full_disk_is_a_warning_and_the_training_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise StoreError("the run could not be written", got="no space left on device")

    monkeypatch.setattr("anisoscope.watch.monitor.write_run", full)
    monitor = AnisotropyMonitor(probe(), every=4, out=tmp_path / "watch")
    with pytest.warns(UserWarning, match="no space left on device"):
        train(tmp_path, model(), monitor)
    assert {row.step for row in monitor.rows} == {0, 4, 8}
    with pytest.raises(StoreError):
        monitor.save()


@pytest.mark.parametrize("existing", ["resume", "replace", "refuse"])
@pytest.mark.parametrize("failing", ["begin", "write_run"])
def test_a_first_save_that_fails_is_made_up_for_by_the_next(
    failing: str, existing: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is begun anew, deleted or refused because of what the failed attempt left."""

    def full(*_: Any, **__: Any) -> None:
        raise StoreError("the run could not be written", got="no space left on device")

    monitor = AnisotropyMonitor(probe(), every=1, out=tmp_path / "watch", existing=existing)
    network = model()
    monkeypatch.setattr(f"anisoscope.watch.monitor.{failing}", full)
    with pytest.warns(UserWarning, match="no space left on device"):
        monitor.observe(network, 0)
    monkeypatch.undo()
    monitor.observe(network, 1)
    monitor.save()
    assert {row.step for row in open_run(tmp_path / "watch").rows()} == {0, 1}
    assert len(list((tmp_path / "watch" / "sums").iterdir())) == 2


def test_a_folder_that_cannot_be_made_is_a_warning(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    monitor = AnisotropyMonitor(probe(), out=tmp_path / "file" / "watch")
    with pytest.warns(UserWarning, match="could not be written"):
        assert monitor.observe(model(), 0)
    (tmp_path / "file").unlink()
    monitor.observe(model(), 1)
    monitor.keep()
    assert {row.step for row in open_run(tmp_path / "file" / "watch").rows()} == {0, 1}


# -- the early warning -------------------------------------------------------------------------------------------------


class Collapse(TrainerCallback):
    """Makes the states of the last layer nearly the same from step 7 on."""

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step >= 7:
            kwargs["model"].bert.encoder.layer[-1].output.LayerNorm.bias.data.fill_(5.0)


def test_it_stops_a_training_whose_last_layer_collapses(tmp_path: Path) -> None:
    network = model()
    monitor = AnisotropyMonitor(probe(), every=1, attention=False, band=Band(after=0), on_warning="stop")
    with pytest.warns(UserWarning, match="left its band"):
        train(tmp_path, network, monitor, steps=40, callbacks=[Collapse()])
    assert [warning.split(" at step ")[1] for warning in monitor.warned] == ["8"]
    assert max(row.step or 0 for row in monitor.rows) == 8


def test_it_calls_back_and_lets_the_training_go_on(tmp_path: Path) -> None:
    told: list[str] = []
    monitor = AnisotropyMonitor(probe(), every=1, attention=False, band=Band(after=0), on_warning=told.append)
    train(tmp_path, model(), monitor, steps=12, callbacks=[Collapse()])
    assert told == monitor.warned
    assert len(told) == 1
    assert max(row.step or 0 for row in monitor.rows) == 12


class Sharpen(TrainerCallback):
    """Multiplies the queries of the first layer by 1.6 at every step from step 7 on."""

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step >= 7:
            kwargs["model"].bert.encoder.layer[0].attention.self.query.weight.data.mul_(1.6)


EARLY = tuple(replace(rule, band=rule.band and replace(rule.band, after=0)) for rule in RULES)


def test_a_healthy_training_is_quiet_and_a_broken_one_is_named(tmp_path: Path) -> None:
    healthy = AnisotropyMonitor(probe(), every=1, rules=EARLY, on_warning="stop")
    train(tmp_path, model(), healthy, steps=16)
    assert healthy.alarms == []
    assert max(row.step or 0 for row in healthy.rows) == 16
    broken = AnisotropyMonitor(probe(), every=1, rules=EARLY, on_warning=lambda message: None, out=tmp_path / "watch")
    train(tmp_path, model(), broken, steps=30, callbacks=[Sharpen()])
    first = next(alarm for alarm in broken.alarms if alarm.rule == "logit_growth")
    assert first.site == broken.alarms[0].site == "block.0"
    assert 7 < first.step <= 20
    assert first.message in broken.warned
    assert alarms_of(open_run(tmp_path / "watch").rows(), EARLY) == broken.alarms
    values = {row.step: row.value for row in broken.rows if (row.site, row.metric) == ("block.0", "max_logit")}
    assert values[30] > 20 * values[6]  # type: ignore[operator]


def test_a_quiet_training_and_the_collapse_of_a_warm_up_are_no_reason_to_warn(
    tmp_path: Path, recwarn: pytest.WarningsRecorder
) -> None:
    quiet = AnisotropyMonitor(probe(), every=1, attention=False, band=Band(after=0), on_warning="stop")
    train(tmp_path, model(), quiet, steps=12)
    early = AnisotropyMonitor(probe(), every=1, attention=False, on_warning="stop")
    train(tmp_path, model(), early, steps=12, callbacks=[Collapse()])
    assert quiet.warned == early.warned == []
    assert max(row.step or 0 for row in early.rows) == 12
    assert not [one for one in recwarn if "left its band" in str(one.message)]


def test_states_that_are_not_finite_are_told_and_do_not_end_the_training(tmp_path: Path) -> None:
    network, monitor = model(), AnisotropyMonitor(probe(), out=tmp_path / "watch")
    monitor.observe(network, 0)
    network.bert.encoder.layer[1].output.LayerNorm.bias.data[3] = float("nan")
    with pytest.warns(UserWarning, match="68 states at block.1 are NaN or infinite at step 1"):
        logged = monitor.observe(network, 1)
    assert "anisotropy/block.0/mean_cosine" in logged
    assert "anisotropy/block.1/mean_cosine" not in logged
    network.bert.embeddings.word_embeddings.weight.data.fill_(float("nan"))
    with pytest.warns(UserWarning, match="states at embeddings"):
        assert monitor.observe(network, 2) == {}
    monitor.save()
    kept = open_run(tmp_path / "watch").manifest
    assert len(kept["notes"]) == 2
    assert "at step 0" in kept["verdict"]


@pytest.mark.filterwarnings("ignore:.*NaN or infinite")
def test_a_training_that_is_set_back_forgets_what_was_warned_of_later_steps(tmp_path: Path) -> None:
    broken = model()
    broken.bert.encoder.layer[1].output.LayerNorm.bias.data[3] = float("nan")
    first = AnisotropyMonitor(probe(), every=1, out=tmp_path / "watch")
    for step, network in enumerate([model(), model(), broken]):
        first.observe(network, step)
    first.save()
    again = AnisotropyMonitor(probe(), every=1, out=tmp_path / "watch")
    again.observe(model(), 2)
    assert again.warned == []
    again.observe(broken, 3)
    again.observe(broken, 3)
    assert [sentence[-9:] for sentence in again.warned] == ["at step 3"]


def test_a_band_needs_a_level_before_it_can_be_left() -> None:
    assert not Band().left([0.1, 0.9, 0.95])
    assert Band(margin=0.05).left([0.1] * 5 + [0.2, 0.2])
    assert not Band(margin=0.05).left([0.1] * 5 + [0.2, 0.1])
    assert not Band().left([0.1, 0.3, 0.1, 0.3, 0.1, 0.5, 0.5]), "a band of sd 0.11 is 0.44 wide"
