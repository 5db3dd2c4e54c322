"""What goes wrong while a model is measured: kills, full disks, damaged states, broken numbers, missing parts.

The kills are real: a process of its own runs the command and sends itself SIGKILL at a chosen point.
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from anisoscope.studies.measure.study import Machine, MeasureSettings, measure_models
from safetensors.torch import load_file, save_file

import zoo
from anisoscope.capture.hidden import HiddenCapture
from anisoscope.errors import AnisoscopeError, InputError, ModelError, StoreError, UsageError
from anisoscope.runs import engine
from anisoscope.runs.measurement import Measurement
from anisoscope.runs.store import open_run

torch.set_num_threads(1)

BATCH_TOKENS = 60
TEXTS = [f"Document number {k} drifts a little {'further ' * (k % 5)}away." for k in range(12)]

# Saves after every batch and dies at sys.argv[1]; the rest of sys.argv is the command.
DRIVER = """
import json, os, signal, sys
import torch
torch.set_num_threads(1)
from anisoscope.capture import hidden
from anisoscope.runs import engine
from anisoscope.studies.measure import study as layers

point, sys.argv[1:] = sys.argv[1], sys.argv[2:]
engine.SAVE_EVERY, engine._SAVING_SHARE = -1.0, float("inf")
die = lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL)
saves, models = [], []
save, write, name_measured = engine.Pass.save, engine.json.dumps, layers.measure_named

def counted_save(self):
    saves.append(self.done)
    if point == "saving" and len(saves) == 2:
        engine.json.dumps = die  # the sums are written, the header that names them is not
    save(self)
    if point == "batch" and len(saves) == 2:
        hidden.HiddenCapture.run = die
    if point == "second model" and len(models) == 2:
        hidden.HiddenCapture.run = die

def counted_model(*args, **options):
    models.append(args[0])
    return name_measured(*args, **options)

engine.Pass.save, layers.measure_named = counted_save, counted_model
if point == "metrics":
    layers.measure_cloud = die
from anisoscope.cli.main import main
main()
"""


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("texts")
    for k, text in enumerate(TEXTS):
        (folder / f"{k:02}.txt").write_text(text, encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return {name: str(zoo.save(name, tmp_path_factory.mktemp("models") / name)) for name in ("gpt2", "bert")}


def settings_of(models: list[str], texts: Path) -> MeasureSettings:
    return MeasureSettings(models=models, data=[str(texts)], documents="file", neighbours=False)


def kill_at(point: str, settings: MeasureSettings, folder: Path) -> None:
    """Run the command in a process of its own that dies at `point`, leaving its folder behind."""
    arguments = ["measure", *settings.models, "--data", settings.data[0], "--documents", "file", "--no-neighbours"]
    arguments += ["--batch-tokens", str(BATCH_TOKENS), "--out", str(folder), "--no-figures", "--json"]
    done = subprocess.run(
        [sys.executable, "-c", DRIVER, point, *arguments], capture_output=True, text=True, timeout=300, check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert done.stdout == ""
    with pytest.raises(StoreError, match="not finished"):
        open_run(folder)


@pytest.fixture
def windows_run(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """The class of the model and the number of windows, for each batch that runs from now on."""
    seen: list[tuple[str, int]] = []
    run = HiddenCapture.run

    def watched(self: HiddenCapture, batch: Any, sink: Any) -> None:
        seen.append((type(self.module).__name__, len(batch)))
        run(self, batch, sink)

    monkeypatch.setattr(HiddenCapture, "run", watched)
    return seen


def assert_same_numbers(a: Measurement, b: Measurement) -> None:
    assert len(a.rows) == len(b.rows) > 0
    for one, other in zip(a.rows, b.rows, strict=True):
        assert (one.model, one.site, one.metric, one.positions, one.n) == (
            other.model, other.site, other.metric, other.positions, other.n,
        )  # fmt: skip
        for name in ("value", "low", "high"):
            mine, theirs = getattr(one, name), getattr(other, name)
            assert (mine is None) == (theirs is None), (one, other)
            assert mine is None or abs(mine - theirs) <= 1e-12 * max(1, abs(theirs)), (one, other)


@pytest.fixture(scope="module")
def whole(texts: Path, checkpoints: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Measurement:
    """The numbers of a run that nobody disturbed."""
    settings = settings_of([checkpoints["gpt2"]], texts)
    return measure_models(settings, machine=Machine(batch_tokens=BATCH_TOKENS), out=tmp_path_factory.mktemp("w") / "w")


@pytest.fixture(scope="module")
def killed_once(texts: Path, checkpoints: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("killed") / "run"
    kill_at("batch", settings_of([checkpoints["gpt2"]], texts), folder)
    return folder


@pytest.fixture
def killed(killed_once: Path, tmp_path: Path) -> Path:
    """A run killed in its third batch, to do with as one likes."""
    return shutil.copytree(killed_once, tmp_path / "killed")


def windows_done(folder: Path) -> int:
    return json.loads((folder / "partial/model-0/pass.json").read_text())["done"]


@pytest.mark.parametrize("batch_tokens", [BATCH_TOKENS, 1000])
def test_a_killed_run_continues_and_ends_with_the_same_numbers(
    batch_tokens, texts, checkpoints, killed, whole, windows_run
):
    done = windows_done(killed)
    settings = settings_of([checkpoints["gpt2"]], texts)
    continued = measure_models(settings, machine=Machine(batch_tokens=batch_tokens), out=killed)
    assert 0 < done < len(TEXTS)
    assert sum(count for _, count in windows_run) == len(TEXTS) - done
    assert_same_numbers(continued, whole)
    assert not (killed / "partial").exists()


@pytest.mark.parametrize("point", ["saving", "metrics"])
def test_a_kill_while_saving_or_after_the_pass_loses_nothing(point, texts, checkpoints, tmp_path, whole, windows_run):
    settings = settings_of([checkpoints["gpt2"]], texts)
    kill_at(point, settings, tmp_path / "killed")
    done = windows_done(tmp_path / "killed")
    continued = measure_models(settings, machine=Machine(batch_tokens=1), out=tmp_path / "killed")
    assert (done == len(TEXTS)) == (point == "metrics")
    assert sum(count for _, count in windows_run) == len(TEXTS) - done < len(TEXTS)
    assert_same_numbers(continued, whole)


def test_a_run_killed_in_its_second_model_keeps_the_first(texts, checkpoints, tmp_path, whole, windows_run):
    settings = settings_of([checkpoints["bert"], checkpoints["gpt2"]], texts)
    kill_at("second model", settings, tmp_path / "killed")
    continued = measure_models(settings, machine=Machine(batch_tokens=BATCH_TOKENS), out=tmp_path / "killed")
    assert {name for name, _ in windows_run} == {"GPT2Model"}
    assert {row.model for row in continued.rows} == {"bert", "gpt2"}
    second = replace(continued, rows=tuple(row for row in continued.rows if row.model == "gpt2"))
    assert_same_numbers(second, whole)


def test_an_interrupted_run_refuses_other_data(texts, checkpoints, killed):
    one = texts / "00.txt"
    before = one.read_text(encoding="utf-8")
    one.write_text("Not what it was.", encoding="utf-8")
    try:
        with pytest.raises(StoreError, match="data changed since this run was interrupted"):
            measure_models(settings_of([checkpoints["gpt2"]], texts), out=killed)
    finally:
        one.write_text(before, encoding="utf-8")


def test_a_damaged_state_is_named_and_can_be_replaced(texts, checkpoints, killed):
    settings = settings_of([checkpoints["gpt2"]], texts)
    state = next((killed / "partial/model-0").glob("state-*.safetensors"))
    state.write_bytes(state.read_bytes()[:1000])
    with pytest.raises(StoreError, match="damaged") as caught:
        measure_models(settings, out=killed)
    assert "--existing replace" in str(caught.value)
    assert measure_models(settings, out=killed, existing="replace").rows


def test_a_full_disk_is_a_clear_error_and_nothing_is_lost(texts, checkpoints, tmp_path, monkeypatch):
    settings = settings_of([checkpoints["gpt2"]], texts)
    monkeypatch.setattr(engine, "SAVE_EVERY", -1.0)
    monkeypatch.setattr(engine, "_SAVING_SHARE", float("inf"))
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, before[1]))  # a file cannot grow: what a full disk looks like
    try:
        with pytest.raises(StoreError, match="could not be saved"):
            measure_models(settings, machine=Machine(batch_tokens=BATCH_TOKENS), out=tmp_path / "run")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)
    assert not list((tmp_path / "run/partial").rglob("*.partial"))
    assert measure_models(settings, out=tmp_path / "run").rows


# --- broken numbers ---------------------------------------------------------------------------------------------------


def broken(checkpoint: str, folder: Path, name: str, rows: Any = slice(None)) -> str:
    """A copy of the checkpoint in which some rows of one weight are NaN."""
    shutil.copytree(checkpoint, folder)
    weights = load_file(folder / "model.safetensors")
    key = next(key for key in weights if key.endswith(name))
    weights[key][rows] = float("nan")
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return str(folder)


def test_weights_of_nothing_but_nan_are_named_by_their_site(texts, checkpoints, tmp_path):
    model = broken(checkpoints["gpt2"], tmp_path / "nan", "h.1.mlp.c_proj.bias")
    with pytest.raises(InputError, match=r"nothing to measure at this site: block\.1") as caught:
        measure_models(settings_of([model], texts), out=tmp_path / "run")
    assert "0 usable vectors" in str(caught.value)


def test_some_nan_activations_are_left_out_counted_and_noted(texts, checkpoints, tmp_path):
    ids = [zoo.processor("gpt2")(text)["input_ids"] for text in TEXTS]
    rare = next(token for token in ids[7] if sum(one.count(token) for one in ids) == 1)
    behind = len(ids[7]) - ids[7].index(rare)  # attention carries it to later positions; 0 · NaN even to earlier ones
    found = measure_models(
        settings_of([broken(checkpoints["gpt2"], tmp_path / "nan", "wte.weight", rare)], texts), out=tmp_path / "run"
    )
    n = {row.site: row.n for row in found.rows if row.metric == "mean_cosine" and row.positions == "all"}
    lost = {site: sum(map(len, ids)) - count for site, count in n.items()}
    assert lost.pop("embeddings") == 1
    assert len(lost) == 4
    assert all(behind <= count <= len(ids[7]) for count in lost.values())
    for count in (1, *lost.values()):
        assert any(f"{count} vectors with NaN or infinite entries left out" in note for note in found.notes)
    assert all(row.value is None or row.value == row.value for row in found.rows)


# --- missing parts ----------------------------------------------------------------------------------------------------


def test_a_text_model_without_tokenizer_is_refused(texts, tmp_path):
    model = str(zoo.save("gpt2", tmp_path / "bare", with_processor=False))
    with pytest.raises(ModelError, match="tokenizer"):
        measure_models(settings_of([model], texts), out=tmp_path / "run")


def test_a_folder_without_a_model_is_refused(texts, tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(ModelError):
        measure_models(settings_of([str(tmp_path / "empty")], texts), out=tmp_path / "run")


@pytest.mark.parametrize("content", ["", " \n\n \t"])
def test_text_without_a_word_is_refused(content, checkpoints, tmp_path):
    blank = tmp_path / "blank.txt"
    blank.write_text(content, encoding="utf-8")
    with pytest.raises(InputError, match="no text could be read"):
        measure_models(settings_of([checkpoints["gpt2"]], blank), out=tmp_path / "run")


def test_data_that_is_not_there_is_refused(checkpoints, tmp_path):
    with pytest.raises(AnisoscopeError) as caught:
        measure_models(settings_of([checkpoints["gpt2"]], tmp_path / "nowhere"), out=tmp_path / "run")
    assert "nowhere" in str(caught.value)


def test_a_folder_of_something_else_is_not_written_into(texts, checkpoints, tmp_path):
    home = tmp_path / "home"
    home.mkdir()
    (home / "letter.txt").write_text("Dear reader", encoding="utf-8")
    for existing in ("resume", "replace", "refuse"):
        with pytest.raises((StoreError, UsageError)):
            measure_models(settings_of([checkpoints["gpt2"]], texts), out=home, existing=existing)
    assert [path.name for path in home.iterdir()] == ["letter.txt"]


def test_an_unreadable_file_among_others_is_noted_and_not_fatal(texts, checkpoints, tmp_path):
    mixed = tmp_path / "mixed"
    shutil.copytree(texts, mixed)
    (mixed / "blank.txt").write_text("  \n", encoding="utf-8")
    found = measure_models(settings_of([checkpoints["gpt2"]], mixed), out=tmp_path / "run")
    assert any("unreadable: " in note and "blank.txt" in note for note in found.notes)
