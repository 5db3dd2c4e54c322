"""Training lowers the loss, publishes what transformers reads, and survives being killed."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from transformers import AutoConfig, AutoModel, AutoTokenizer

import cases
from anisoscope.errors import InputError, ModelError, StoreError
from anisoscope.models.embedded_series import find_series
from anisoscope.training.folder import agree, check_folder
from anisoscope.training.pretrain import last_state, pretrain
from anisoscope.training.recipe import Recipe
from anisoscope.training.series import read_log

SMALL = {"layers": 1, "hidden": 32, "heads": 2, "length": 32, "batch": 8, "warmup": 10, "validation_batches": 4}
pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def text(tmp_path_factory) -> str:
    """A text with structure enough to learn: every letter is followed by its successor."""
    path = tmp_path_factory.mktemp("text") / "alphabet.txt"
    path.write_bytes(b"abcdefghijklmnopqrstuvwxyz\n" * 800)
    return str(path)


@pytest.mark.parametrize(
    ("arch", "objective", "attention"),
    [
        ("bert", "mlm", "softmax"),
        ("bert", "mlm", "gated"),  # with weights of its own; all variants learn in test_attention_variants
        ("bert", "headless", "softmax"),
        ("gpt2", "clm", "softmax"),
        ("neox", "clm", "softmax"),
        ("llama", "headless", "softmax"),
    ],
)
def test_training_lowers_the_loss(arch: str, objective: str, attention: str, text: str, tmp_path) -> None:
    recipe = Recipe(
        arch=arch,
        objective=objective,
        attention=attention,
        data=[text],
        steps=100,
        first_checkpoint=64,
        learning_rate=5e-3,
        **SMALL,
    )
    pretrain(recipe, tmp_path)
    losses = [record["validation_loss"] for record in read_log(tmp_path, 0)]
    enough = 0.97 if objective == "headless" else 0.85  # duplicates in a batch keep the headless loss near log N
    assert losses[-1] < enough * losses[0]


def test_a_series_is_what_transformers_publishes(text: str, tmp_path) -> None:
    recipe = Recipe(data=[text], steps=20, seeds=[3, 4], first_checkpoint=5, **SMALL)
    checkpoints = pretrain(recipe, tmp_path)

    assert [(seed, step) for seed, step, _ in checkpoints] == [(s, t) for s in (3, 4) for t in (0, 5, 10, 20)]
    assert checkpoints == find_series(tmp_path)
    for _, _, folder in checkpoints:
        assert AutoConfig.from_pretrained(folder).architectures == ["BertForMaskedLM"]
        assert len(AutoTokenizer.from_pretrained(folder)) == 261
        assert AutoModel.from_pretrained(folder).embeddings.word_embeddings.weight.shape == (261, 32)
    files = {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*") if path.is_file()}
    assert {file for file in files if "checkpoint" not in file} == {
        "recipe.toml",
        "seed-3/log.jsonl",
        "seed-4/log.jsonl",
    }
    assert [record["step"] for record in read_log(tmp_path, 3)] == [0, 5, 10, 20]


def test_the_recipe_in_the_folder_repeats_the_training(text: str, tmp_path) -> None:
    pretrain(Recipe(data=[text], steps=8, first_checkpoint=4, dropout=0.1, **SMALL), tmp_path / "one")
    again = Recipe.read(tmp_path / "one" / "recipe.toml")
    assert again.data_sha256 is not None
    pretrain(again, tmp_path / "two")
    assert_same_series(tmp_path / "one", tmp_path / "two")


def test_seeds_differ_and_validate_on_the_same_windows(text: str, tmp_path) -> None:
    from anisoscope.training.data.text import TextData

    recipe = Recipe(data=[text], steps=4, seeds=[0, 1], **SMALL)
    pretrain(recipe, tmp_path)
    data = TextData.open(recipe, tmp_path)
    assert (data.held_out()[3]["labels"] == data.held_out()[3]["labels"]).all()
    weights = [(tmp_path / f"seed-{seed}/checkpoint-0/model.safetensors").read_bytes() for seed in (0, 1)]
    assert weights[0] != weights[1]


KILLED = """
import os, signal, sys
import torch
from anisoscope.training import pretrain, trainer
from anisoscope.training.recipe import Recipe

recipe, out, moment = sys.argv[1:]
calls = 0

def die_at(nth, work):
    def wrapped(*args, **options):
        global calls
        calls += 1
        if calls == nth:
            os.kill(os.getpid(), signal.SIGKILL)
        return work(*args, **options)
    return wrapped

if moment == "state":  # the optimizer of the third state is not written any more
    torch.save = die_at(7, torch.save)
else:  # a checkpoint has its weights but not its tokenizer yet
    from transformers import PreTrainedTokenizerFast
    PreTrainedTokenizerFast.save_pretrained = die_at(5, PreTrainedTokenizerFast.save_pretrained)
pretrain.pretrain(Recipe.read(recipe), out, announce=lambda line: print(line, flush=True))
"""


def test_a_training_that_was_killed_twice_ends_with_the_same_weights(text: str, tmp_path) -> None:
    recipe = Recipe(data=[text], steps=60, first_checkpoint=15, dropout=0.1, save_every=10, **SMALL)
    path = tmp_path / "recipe.toml"
    path.write_text(recipe.to_toml())
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    pretrain(recipe, whole)

    first = run_killed(path, killed, "state")
    assert "starts at step 0" in first
    assert not (killed / "seed-0" / "checkpoint-60").exists()
    second = run_killed(path, killed, "publish")
    assert "continues at step 10" in second  # the state of step 15 was never whole
    lines: list[str] = []
    pretrain(recipe, killed, announce=lines.append)

    assert "continues at step" in lines[0]
    assert_same_series(whole, killed)
    lines.clear()
    pretrain(recipe, killed, announce=lines.append)
    assert lines == ["seed 0: complete"]


def run_killed(recipe: Path, out: Path, moment: str) -> str:
    ended = cases.run_code(KILLED, recipe, out, moment)
    assert ended.code == -signal.SIGKILL, ended.err
    return ended.out


def assert_same_series(one: Path, other: Path) -> None:
    assert [found[:2] for found in find_series(one)] == [found[:2] for found in find_series(other)]
    for _, _, folder in find_series(one):
        twin = other / folder.relative_to(one)
        assert sorted(path.name for path in folder.iterdir()) == sorted(path.name for path in twin.iterdir())
        assert all(path.read_bytes() == (twin / path.name).read_bytes() for path in folder.iterdir())
    assert read_log(one, 0) == read_log(other, 0)


def test_half_written_states_are_passed_over(tmp_path) -> None:
    for step, content in ((10, '{"global_step": 10}'), (20, '{"global_step": 20}'), (30, '{"global_st'), (40, None)):
        (tmp_path / f"checkpoint-{step}").mkdir()
        if content is not None:
            (tmp_path / f"checkpoint-{step}" / "trainer_state.json").write_text(content)
    assert last_state(tmp_path) == (20, str(tmp_path / "checkpoint-20"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoint-10", "checkpoint-20"]
    assert last_state(tmp_path / "absent") == (0, None)


def test_a_folder_holds_one_training(tmp_path) -> None:
    agree(Recipe(data=["-"], data_sha256="f0", steps=5), tmp_path)
    agree(Recipe(data=["-"], data_sha256="f0", steps=5, seeds=[2]), tmp_path)
    assert Recipe.read(tmp_path / "recipe.toml").seeds == [0, 2]
    with pytest.raises(StoreError, match="steps = 6"):
        agree(Recipe(data=["-"], data_sha256="f0", steps=6), tmp_path)


def test_a_folder_of_something_else_is_refused_and_left_alone(tmp_path) -> None:
    (tmp_path / "file").write_text("a letter")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "run.toml").write_text('command = "null"')
    (tmp_path / "letters").mkdir()
    (tmp_path / "letters" / "dear.txt").write_text("Dear,")
    for name, reason in (("file", "this is a file"), ("run", "holds a run"), ("letters", "not a training")):
        with pytest.raises(StoreError, match=reason):
            pretrain(Recipe(data=["-"]), tmp_path / name)
    assert (tmp_path / "letters" / "dear.txt").read_text() == "Dear,"
    (tmp_path / "begun").mkdir()
    (tmp_path / "begun" / "tokens-0f0f.partial.npy").write_text("")  # what a kill leaves before the recipe is written
    check_folder(tmp_path / "begun")


@pytest.mark.parametrize(("steps", "save_every"), [(6, 500), (6, 1), (1, 500)], ids=["late", "early", "last update"])
def test_a_training_that_diverges_never_ends_well(text: str, tmp_path, steps: int, save_every: int) -> None:
    options = {**SMALL, "warmup": 0, "learning_rate": 1e30, "clip": 1e30, "save_every": save_every}
    recipe = Recipe(arch="gpt2", data=[text], steps=steps, **options)
    for _ in range(2):  # also when the command is given again
        with pytest.raises(ModelError, match=r"the training diverged: loss is (NaN|infinite) at step \d"):
            pretrain(recipe, tmp_path)
    assert [step for _, step, _ in find_series(tmp_path)] == [0], "a checkpoint of NaN is not published"


STOPPED = """
import os, signal, sys
from anisoscope.cli.main import main
from anisoscope.training import trainer

number, step, *arguments = sys.argv[1:]
work = trainer.SeriesTrainer.compute_loss

def stopped(self, *args, **options):
    if self.model.training and self.state.global_step == int(step):
        os.kill(os.getpid(), int(number))
    return work(self, *args, **options)

trainer.SeriesTrainer.compute_loss = stopped
main(["pretrain", *arguments])
"""


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_saves_the_state_and_nothing_is_lost(text: str, tmp_path, number: int, code: int) -> None:
    recipe = Recipe(data=[text], steps=12, first_checkpoint=8, dropout=0.1, **SMALL)
    path = tmp_path / "recipe.toml"
    path.write_text(recipe.to_toml())
    pretrain(recipe, tmp_path / "whole")
    ended = cases.run_code(STOPPED, int(number), 5, "--recipe", path, "--out", tmp_path / "parts")
    assert ended.code == code, ended.err
    assert ended.err.splitlines()[-1] == "anisoscope: saved; the same command continues"
    assert "Traceback" not in ended.err
    lines: list[str] = []
    pretrain(recipe, tmp_path / "parts", announce=lines.append)
    assert lines == ["seed 0: continues at step 6"], "the step that was running when the signal came is not lost"
    assert_same_series(tmp_path / "whole", tmp_path / "parts")
    assert not (tmp_path / "parts" / "seed-0" / "resume").exists()


FULL = """
import resource, sys
from anisoscope.cli.main import main
recipe, *rooms = sys.argv[1:]
for room in rooms:
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(room), resource.RLIM_INFINITY))
    try:
        main(["pretrain", "--recipe", recipe, "--out", room])
    except SystemExit as ended:
        print(ended.code, flush=True)
"""


def test_a_full_disk_is_one_message_and_the_same_command_continues(text: str, tmp_path) -> None:
    rooms = ("0", "5000", "150000")  # for less than the recipe, the weights, the state of the optimizer
    recipe = Recipe(data=[text], steps=3, save_every=1, **SMALL)
    path = tmp_path / "recipe.toml"
    path.write_text(recipe.to_toml())
    command = [sys.executable, "-c", FULL, str(path), *rooms]
    ended = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300, cwd=tmp_path)
    assert ended.stdout.split() == ["1", "1", "1"], ended.stderr
    assert ended.stderr.count("the training could not be written") == 3
    assert "Traceback" not in ended.stderr
    for room in rooms:
        pretrain(recipe, tmp_path / room)
        assert [step for _, step, _ in find_series(tmp_path / room)] == [0, 3]


def test_nothing_is_published_of_a_text_that_changed_while_it_was_read(text: str, tmp_path, monkeypatch) -> None:
    from anisoscope.training.data.text import Windows

    own = tmp_path / "own.txt"
    own.write_bytes(Path(text).read_bytes())
    draw, drawn = Windows.__getitem__, []

    def edited(self, index: int):
        drawn.append(index)
        if self.seed == 0 and index == 3 * SMALL["batch"]:  # in the fourth step
            with own.open("r+b") as stream:
                stream.write(b"zyxw")
        return draw(self, index)

    monkeypatch.setattr(Windows, "__getitem__", edited)
    recipe = Recipe(data=[str(own)], steps=8, first_checkpoint=2, **SMALL)
    with pytest.raises(InputError, match=r"changed while it was read.*own\.txt"):
        pretrain(recipe, tmp_path / "series")
    assert [step for _, step, _ in find_series(tmp_path / "series")] == [0, 2]
    with pytest.raises(StoreError, match="another training"):
        pretrain(recipe, tmp_path / "series")


def test_nothing_leaks_to_the_terminal(text: str, tmp_path, capfd) -> None:
    pretrain(Recipe(data=[text], steps=4, **SMALL), tmp_path)
    assert capfd.readouterr() == ("", "")


def test_an_empty_folder_is_no_series(tmp_path) -> None:
    with pytest.raises(InputError, match="no checkpoint"):
        find_series(tmp_path)


def test_log_lines_are_json(text: str, tmp_path) -> None:
    pretrain(Recipe(data=[text], steps=4, **SMALL), tmp_path)
    lines = (tmp_path / "seed-0" / "log.jsonl").read_text().splitlines()
    last = json.loads(lines[-1])
    assert last["step"] == 4
    assert {"training_loss", "validation_loss", "learning_rate", "gradient_norm"} < last.keys()
