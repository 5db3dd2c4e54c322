"""What a run read is changed, after the run or after a kill: old numbers are never passed off as new ones."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from safetensors.torch import load_file, save_file

import anisoscope
import cases
from anisoscope.errors import AnisoscopeError, StoreError
from anisoscope.runs.perform import default_folder
from anisoscope.runs.study import find_study
from faults import jobs


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return cases.make_world(tmp_path_factory.mktemp("original"))


@pytest.fixture
def world(original: Path, tmp_path: Path) -> Path:
    """A copy that may be changed."""
    return shutil.copytree(original, tmp_path / "world")


def change_weights(model: Path) -> None:
    weights = load_file(model / "model.safetensors")
    weights[next(iter(weights))][0] += 1
    save_file(weights, model / "model.safetensors", metadata={"format": "pt"})


def change_config(model: Path) -> None:
    config = json.loads((model / "config.json").read_text())
    eps = next(name for name in config if "norm_eps" in name or "norm_epsilon" in name)
    (model / "config.json").write_text(json.dumps({**config, eps: 1e-3}))


def change_tokenizer(model: Path) -> None:
    file = model / "tokenizer.json"
    cut = {"direction": "Right", "max_length": 5, "strategy": "LongestFirst", "stride": 0}
    file.write_text(json.dumps({**json.loads(file.read_text()), "truncation": cut}))


CHANGES = {"model.safetensors": change_weights, "config.json": change_config, "tokenizer.json": change_tokenizer}
MODELS = {"measure": "bert", "attention": "gpt2", "sweep": "series/checkpoint-8", "final-norm": "gpt2"}


@pytest.mark.parametrize("command", MODELS)
def test_another_model_is_refused_by_the_name_of_its_file(command: str, world: Path, command_line) -> None:
    words = [*cases.words_of(command, world), "--out", world / "run"]
    assert command_line(*words).code == 0
    model = world / MODELS[command]
    for name, change in CHANGES.items():
        before = (model / name).read_bytes()
        change(model)
        refused = command_line(*words)
        assert (refused.code, refused.out) == (1, "")
        assert "changed since this run was made" in refused.err
        assert name in refused.err
        (model / name).write_bytes(before)
    assert command_line(*words).code == 0  # as it was: used again
    change_weights(model)
    before = cases.table(world / "run")
    assert command_line(*words, "--existing", "replace").code == 0
    assert cases.table(world / "run") != before


@pytest.mark.parametrize("command", cases.COMMANDS)
def test_other_data_is_refused(command: str, world: Path, command_line) -> None:
    words = [*cases.words_of(command, world), "--out", world / "run"]
    assert command_line(*words).code == 0
    name = "vectors.parquet" if command in ("vectors", "calibrate") else "texts.txt"
    if name == "vectors.parquet":
        cases.write_vectors(world / name, seed=1)
    else:
        (world / name).write_text("Something else.\nAnd more.\n" * 5)
    refused = command_line(*words)
    assert refused.code == 1
    assert name in refused.err
    assert "changed since this run was made" in refused.err
    (world / name).unlink()
    gone = command_line(*words)
    assert gone.code == 1
    assert name in gone.err


@pytest.mark.parametrize("command", cases.COMMANDS)
def test_what_changed_after_a_kill_is_named_and_not_continued(command: str, world: Path, command_line) -> None:
    words = [*cases.words_of(command, world), "--out", world / "run"]
    assert cases.run(*words, signal_=signal.SIGKILL, after=2).code == -signal.SIGKILL
    kept = cases.states(world / "run")
    assert kept
    if command in ("vectors", "calibrate"):
        cases.write_vectors(world / "vectors.parquet", seed=1)
        said = "data"
    else:
        change_weights(world / {"measure": "gpt2", "sweep": "series/checkpoint-0"}.get(command, MODELS[command]))
        said = "model"
    refused = command_line(*words)
    assert refused.code == 1
    assert f"the {said} changed since this run was interrupted" in refused.err
    assert cases.states(world / "run") == kept
    assert command_line(*words, "--existing", "replace").code == 0


def swap_link(model: Path) -> None:
    """The weights were a link all along; now it leads elsewhere, to a file of the same size and time."""
    weights, other = model / "model.safetensors", model.parent / "other.safetensors"
    times = weights.stat()
    shutil.copy(weights, other)
    weights.unlink()
    weights.symlink_to(other)
    change_weights(model)
    os.utime(other, ns=(times.st_atime_ns, times.st_mtime_ns))


@pytest.mark.parametrize("change", [change_config, change_tokenizer, swap_link])
def test_any_file_of_a_model_that_changed_after_a_kill_is_noticed(
    change: Callable[[Path], None], world: Path, command_line
) -> None:
    words = [*cases.words_of("measure", world), "--out", world / "run"]
    assert cases.run(*words, signal_=signal.SIGKILL, after=2).code == -signal.SIGKILL
    change(world / "gpt2")
    refused = command_line(*words)
    assert refused.code == 1
    assert "changed since this run was interrupted" in refused.err


def change_runs(run: Path) -> None:
    shutil.rmtree(run)
    shutil.copytree(run.parent / "run-1", run)


INPUTS = {
    "intervene": (("lm/model.safetensors", change_weights), ("lm/config.json", change_config)),
    "vocabulary": (("lm/model.safetensors", change_weights),),
    "block": (("bert/config.json", change_config),),
    "remedy fit": (("few.parquet", lambda folder: cases.write_vectors(folder / "few.parquet", rows=400, seed=1)),),
    "variants": (("book.txt", lambda folder: (folder / "book.txt").write_bytes(b"Another book altogether.\n" * 60)),),
    "null": (("run-0/manifest.json", change_runs),),
}


@pytest.fixture(scope="module")
def more(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return jobs.make_world(tmp_path_factory.mktemp("more"), cases.run)


@pytest.mark.parametrize("command", INPUTS)
def test_every_study_looks_at_what_it_read(command: str, more: Path, tmp_path: Path, command_line) -> None:
    world = shutil.copytree(more, tmp_path / "world")
    words = [*jobs.words_of(command, world), "--out", tmp_path / "run"]
    words += ["--runs", world / "run-0"] if command == "null" else []
    assert command_line(*words).code == command_line(*words).code == 0
    for name, change in INPUTS[command]:
        change((world / name).parent)
        refused = command_line(*words)
        assert refused.code == 1, (command, name)
        assert "changed since this run was made" in refused.err
    assert command_line(*words, "--existing", "replace").code == 0


def test_a_checkpoint_that_a_sweep_had_finished_is_looked_at_again(world: Path, command_line) -> None:
    words = [*cases.words_of("sweep", world), "--out", world / "run"]
    assert cases.run(*words, signal_=signal.SIGKILL, after=26).code == -signal.SIGKILL
    (finished,) = (world / "run/partial").glob("*/total")
    for begun in (world / "run/partial").iterdir():
        if begun != finished.parent:
            shutil.rmtree(begun)  # as if the kill had come between two checkpoints
    texts = (world / "texts.txt").read_bytes()
    (world / "texts.txt").write_bytes(texts + b"One line more.\n")
    assert "the data changed since this run was interrupted" in command_line(*words).err
    (world / "texts.txt").write_bytes(texts)
    change_weights(world / "series/checkpoint-0")
    refused = command_line(*words)
    assert refused.code == 1
    assert "model.safetensors" in refused.err
    assert "changed since this run was interrupted" in refused.err


def test_a_run_that_compare_read_is_looked_at_again(world: Path, command_line) -> None:
    for seed in (0, 1):
        assert command_line(*cases.words_of("vectors", world), "--seed", seed, "--out", world / f"r{seed}").code == 0
    words = ["compare", world / "r0", world / "r1", "--out", world / "difference"]
    assert command_line(*words).code == command_line(*words).code == 0
    again = [*cases.words_of("vectors", world), "--seed", 2, "--out", world / "r1", "--existing", "replace"]
    assert command_line(*again).code == 0
    refused = command_line(*words)
    assert refused.code == 1
    assert f"the run {world / 'r1'} changed" in refused.err
    shutil.rmtree(world / "r1")
    gone = command_line(*words)
    assert gone.code == 1
    assert f"the run {world / 'r1'}" in gone.err
    assert "unexpected" not in gone.err


def test_vectors_that_are_edited_while_they_are_read_are_refused(tmp_path: Path, monkeypatch) -> None:
    from anisoscope.accumulate.moments import Moments

    np.save(tmp_path / "x.npy", np.random.default_rng(0).standard_normal((20_000, 4)))
    update, blocks = Moments.update, []

    def edited(self, x, **options) -> None:
        update(self, x, **options)
        blocks.append(len(x))
        if len(blocks) == 1:
            with (tmp_path / "x.npy").open("r+b") as stream:
                stream.seek(-8, 2)
                stream.write(np.float64(3.0).tobytes())

    monkeypatch.setattr(Moments, "update", edited)
    with pytest.raises(AnisoscopeError, match=r"changed.*x\.npy"):
        anisoscope.vectors(tmp_path / "x.npy", out=tmp_path / "run", neighbours=False)
    assert len(blocks) > 1
    assert not (tmp_path / "run").exists()


def test_other_objects_in_memory_are_other_data(tmp_path: Path) -> None:
    x = np.random.default_rng(0).standard_normal((200, 6))
    first = anisoscope.vectors(x, out=tmp_path / "run", neighbours=False)
    again = anisoscope.vectors(x.copy(), out=tmp_path / "run", neighbours=False)
    assert again.rows == first.rows
    with pytest.raises(StoreError, match="changed since this run was made"):
        anisoscope.vectors(x + 1, out=tmp_path / "run", neighbours=False)


OWN = """
from transformers import BertModel
class Own(BertModel):
    def forward(self, *args, **kwargs):
        out = super().forward(*args, **kwargs)
        out.hidden_states = out.hidden_states and tuple(h + 3 for h in out.hidden_states)
        return out
"""


def test_a_model_run_by_its_own_code_is_another_one(world: Path, monkeypatch, command_line) -> None:
    """Where the library knows the architecture too, leave to run the repository's code changes who computes."""
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(world / "modules"))
    (world / "bert/own.py").write_text(OWN)
    config = json.loads((world / "bert/config.json").read_text())
    (world / "bert/config.json").write_text(json.dumps({**config, "auto_map": {"AutoModel": "own.Own"}}))
    words = ["measure", world / "bert", "--data", world / "texts.txt", "--no-neighbours", *cases.SMALL]
    for first, then in (((), ("--trust-remote-code",)), (("--trust-remote-code",), ())):
        run = ("--out", world / f"run{len(first)}")
        assert command_line(*words, *run, *first).code == command_line(*words, *run, *first).code == 0
        refused = command_line(*words, *run, *then)
        assert refused.code == 1
        assert "whether its own code may run" in refused.err
    names = {"fingerprint", "own_code"}
    known = [json.loads((world / f"run{k}/manifest.json").read_text())["inputs"]["model bert"] for k in (0, 1)]
    assert all(known[0][name] != known[1][name] for name in names)


def test_edited_data_gets_a_folder_of_its_own_even_with_its_time_set_back(tmp_path: Path) -> None:
    study, file = find_study("vectors"), tmp_path / "x.npy"
    np.save(file, np.ones((4, 2)))
    settings, before = study.settings.check({"files": [str(file)]}), file.stat()
    folder = default_folder(study, settings)
    assert default_folder(study, settings) == folder
    with file.open("r+b") as stream:
        stream.seek(-8, 2)
        stream.write(np.float64(3.0).tobytes())
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert default_folder(study, settings) != folder
