"""What is printed: harmless whatever the names are, whole in 80 columns, plain in a pipe, the same from `show`."""

from __future__ import annotations

import csv
import io
import json
import re
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import anisoscope
import cases
import zoo
from anisoscope.report import markdown
from anisoscope.report.terminal import tell
from anisoscope.runs.measurement import Measurement
from anisoscope.runs.progress import track

HOSTILE = "\x1b[31mred\x07[bold]x[/bold]\u202eevil"
LONG = "a-model-with-a-very-long-name-that-does-not-fit-into-eighty-columns-however-one-tries-it"


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("world")
    zoo.save("gpt2", folder / "gpt2")
    (folder / "texts.txt").write_text("\n".join(f"Line {k} of a text." for k in range(8)))
    np.save(folder / "x.npy", np.random.default_rng(0).standard_normal((300, 6)) + 1)
    return folder


def measured(world: Path, out: Path, *names: str) -> list[object]:
    named = [word for name in names for word in ("--name", name)]
    texts = [
        "--data",
        world / "texts.txt",
        "--documents",
        "lines",
        "--no-neighbours",
        "--spectrum",
        "none",
        "--no-figures",
    ]
    return ["measure", *[world / "gpt2"] * len(names), *named, *texts, "--out", out]


def test_hostile_names_are_shown_and_not_obeyed(world: Path, tmp_path: Path, command) -> None:
    words = measured(world, tmp_path / "run", HOSTILE, "=1+1")
    for ended in (command(*words), command("show", tmp_path / "run"), command("show", tmp_path / "run", "--all")):
        assert ended.code == 0, ended.err
        assert not {"\x1b", "\x07", "\u202e"} & set(ended.out + ended.err)
        assert "\\x1b[31mred\\x07[bold]x[/bold]" in ended.out
    assert json.loads(command("show", tmp_path / "run", "--json").out)["measurements"][0]["model"] == HOSTILE


def test_an_error_about_a_hostile_name_is_harmless(world: Path, tmp_path: Path, command) -> None:
    for words in (("vectors", tmp_path / f"{HOSTILE}.npy"), ("show", tmp_path / HOSTILE), (HOSTILE,)):
        ended = command(*words)
        assert ended.code in (1, 2)
        assert not {"\x1b", "\x07"} & set(ended.err), ended.err


def test_no_number_is_cut_however_narrow_the_screen(world: Path, tmp_path: Path, command, monkeypatch) -> None:
    """Half a number reads like another number."""
    words = ("vectors", world / "x.npy", "--no-neighbours", "--no-figures", "--out", tmp_path / "run", "--all")
    wide = re.findall(r"\d[\d.e+-]*", command(*words).out)
    monkeypatch.setenv("COLUMNS", "20")
    narrow = re.findall(r"\d[\d.e+-]*", command(*words).out)
    assert sorted(set(wide) - set(narrow)) == []


def test_no_name_makes_a_line(world: Path, tmp_path: Path, command) -> None:
    for break_ in ("\n", "\r", "\x85", "\u2028"):
        name = f"run{break_}note: forged"
        made = command("vectors", world / "x.npy", "--no-neighbours", "--no-figures", "--out", tmp_path / name)
        assert made.code == 0, made.err
        shown = [made.out, command("show", tmp_path / f"{name}?").err, command(name).err]
        printed = (break_.encode("unicode_escape").decode()) + "note: forged"
        for text in shown:
            assert printed in text
            assert not any(line.startswith("note: forged") for line in text.splitlines())
        log = io.StringIO()
        with track(name, stream=log) as bar:
            setattr(bar, "spoke", time.monotonic() + 1)  # noqa: B010  # as if a line had been logged
        assert printed in log.getvalue()
    assert "\x1b" not in markdown.escaped("\x1b[31m")


def test_closed_streams_are_the_null_device(world: Path, tmp_path: Path) -> None:
    """An error must not stand among the results, nor a file take the number of a stream."""
    words = [sys.executable, "-m", "anisoscope", "show", str(tmp_path / "none"), "--json"]
    ended = subprocess.run(["bash", "-c", '"$@" 2>&-', "bash", *words], capture_output=True, check=False)
    assert (ended.returncode, ended.stdout) == (1, b"")
    script = "import sys; from anisoscope.cli.main import _stand_in; _stand_in()\n"
    script += "open(sys.argv[1], 'w').write(str([s.fileno() for s in (sys.stdin, sys.stdout, sys.stderr)]))"
    numbers = tmp_path / "numbers"
    closed = ["bash", "-c", '"$@" <&- >&- 2>&-', "bash"]
    subprocess.run([*closed, sys.executable, "-c", script, str(numbers)], check=True)
    assert numbers.read_text() == "[0, 1, 2]"


def test_a_csv_holds_no_formula(world: Path, tmp_path: Path, command) -> None:
    names = ["=1+1", "+x", "-x", "@x"]
    assert command(*measured(world, tmp_path / "run", *names), "--csv", tmp_path / "t.csv").code == 0
    with (tmp_path / "t.csv").open(newline="") as stream:
        models = {row["model"] for row in csv.DictReader(stream)}
    assert models == {f"'{name}" for name in names}


def test_names_are_whole_in_eighty_columns(world: Path, tmp_path: Path, command, monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    ended = command(*measured(world, tmp_path / "run", LONG, "other"))
    assert ended.code == 0
    table = ended.out.split("run: ")[0]
    assert "…" not in table.replace(" … ", "")
    assert LONG in table.replace("\n", "")
    for site in ("embeddings", "block.0", "block.2", "final_norm"):
        assert site in table


@pytest.mark.parametrize("where", ["pipe", "terminal"])
def test_colours_are_for_terminals(where: str, world: Path, tmp_path: Path) -> None:
    anisoscope.vectors(world / "x.npy", neighbours=False, out=tmp_path / "run")
    words = [sys.executable, "-m", "anisoscope", "show", str(tmp_path / "run")]
    env = {**cases.environment(), "TERM": "xterm-256color"}
    env.pop("NO_COLOR", None)
    if where == "pipe":
        shown = subprocess.run(words, capture_output=True, text=True, env=env, check=True).stdout
    else:
        shown = subprocess.run(
            ["script", "-qec", " ".join(words), "/dev/null"], capture_output=True, text=True, env=env, check=True
        ).stdout
    assert ("\x1b[" in shown) == (where == "terminal")


def test_show_tells_what_the_command_told(world: Path, tmp_path: Path, command) -> None:
    for words in (
        measured(world, tmp_path / "measure", "one"),
        ["vectors", world / "x.npy", "--out", tmp_path / "vectors"],
        ["calibrate", world / "x.npy", "--no-figures", "--out", tmp_path / "calibrate"],
        ["null", "--dim", "16", "--no-figures", "--out", tmp_path / "null"],
        ["attention", world / "gpt2", "--data", world / "texts.txt", "--no-figures", "--out", tmp_path / "attention"],
    ):
        told = command(*words)
        assert told.code == 0, told.err
        assert command("show", words[-1]).out == told.out
        assert command("show", words[-1], "--all").out.count("\n") >= told.out.count("\n")


def test_the_models_fit_80_columns_and_the_known_figures_are_in_order(command, monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    told = command("models").out.splitlines()
    assert max(map(len, told)) <= 80
    assert any("Visual-Attention-Network/van-base" in line for line in told)
    assert told[1].split() == ["model", "modality", "figures", "here"]
    known = command("models", "--figure", "99").err
    assert known.index(" 2,") < known.index(" 11,") < known.index(" M1,")


def test_a_plain_table_names_metrics_in_words(command, tmp_path: Path) -> None:
    told = command("null", "--dim", "16", "--dim", "64", "--no-figures", "--out", tmp_path / "null").out
    assert "95 % pair cosine" in told
    assert "cosine_q95" not in told


LIGHT = {
    "--help": 0,
    "--version": 0,
    "compare --help": 0,
    "compare OUT/run OUT/run --out OUT/compare": 0,
    "measure --help": 0,
    "models": 0,
    "models --figure 99": 2,
    "null --dim 16 --no-figures --out OUT/null": 0,
    "show OUT/run": 0,
    "show OUT/run --json": 0,
    "vectors --help": 0,
    "mesure": 2,
}
WATCH = """
import sys
from anisoscope.cli.main import main
try:
    main(sys.argv[1:])
except SystemExit as ended:
    heavy = ("torch", "transformers", "scipy", "matplotlib", "plotly", "pandas")
    print(ended.code or 0, *(name for name in heavy if name in sys.modules), file=sys.stderr)
"""


@pytest.mark.parametrize("words", LIGHT)
def test_light_commands_import_nothing_heavy(words: str, world: Path, tmp_path: Path) -> None:
    anisoscope.vectors(world / "x.npy", neighbours=False, out=tmp_path / "run")
    given = words.replace("OUT", str(tmp_path)).split()
    done = subprocess.run(
        [sys.executable, "-c", WATCH, *given], capture_output=True, text=True, env=cases.environment(), check=False
    )
    assert done.stderr.splitlines()[-1] == str(LIGHT[words]), done.stderr


def test_show_of_a_model_imports_nothing_heavy(world: Path, tmp_path: Path, command) -> None:
    assert command(*measured(world, tmp_path / "run", "one")).code == 0
    done = subprocess.run(
        [sys.executable, "-c", WATCH, "show", str(tmp_path / "run")],
        capture_output=True,
        text=True,
        env=cases.environment(),
        check=False,
    )
    assert done.stderr.splitlines()[-1] == "0", done.stderr


@pytest.mark.parametrize("screen", [True, False])
def test_sentences_are_folded_between_words_on_a_screen_alone(screen: bool) -> None:
    from rich.console import Console

    said = Measurement((), verdict=("two words " * 20).strip(), notes=("a note of many words " * 6,), command="vectors")
    console = Console(width=80, force_terminal=screen, no_color=True, file=io.StringIO())
    tell(None, said, console=console)
    lines = re.sub(r"\x1b\[[0-9;]*m", "", console.file.getvalue()).splitlines()
    assert (max(map(len, lines)) <= 80) == screen
    assert " ".join(line.strip() for line in lines).count("two words") == 20
