"""A typo costs nothing: it is told at once, with the nearest word, and leaves nothing behind."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import anisoscope
import zoo
from anisoscope.errors import UsageError


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("world")
    zoo.save("gpt2", folder / "gpt2")
    (folder / "texts.txt").write_text("\n".join(f"Line {k} of a text." for k in range(8)))
    np.save(folder / "x.npy", np.random.default_rng(0).standard_normal((300, 6)))
    return folder


MEASURE = "measure gpt2 --data texts.txt --documents lines --no-neighbours --spectrum none --no-figures"
ATTENTION = "attention gpt2 --data texts.txt --documents lines --no-figures"
VECTORS = "vectors x.npy --no-neighbours"
WRONG = {  # what was written for what was meant, and the exit code
    "a choice": (f"{MEASURE} --specials kep", f"{MEASURE} --specials keep", 2),
    "an unknown model": (MEASURE.replace("gpt2", "./gtp2"), MEASURE, 1),
    "an unknown second model": (MEASURE.replace("gpt2", "gpt2 ./gtp2"), MEASURE, 1),
    "missing data": (MEASURE.replace("texts", "tests"), MEASURE, 2),
    "an unknown site": (f"{MEASURE} --sites blok.1", f"{MEASURE} --sites block.1", 2),
    "a window that is too long": (f"{ATTENTION} --length 100000", f"{ATTENTION} --length 16", 2),
    "missing data of attention": (ATTENTION.replace("texts", "tests"), ATTENTION, 2),
    "missing vectors": (VECTORS.replace("x.npy", "y.npy"), VECTORS, 2),
    "a column of an array": (f"{VECTORS} --column z", VECTORS, 2),
    "missing queries": ("calibrate x.npy --no-figures --queries q.npy", "calibrate x.npy --no-figures", 2),
    "a run to compare": ("compare runs/a runs/b", VECTORS, 1),
}


@pytest.mark.parametrize("case", WRONG)
def test_nothing_is_left_behind_and_the_corrected_command_works(case, world, tmp_path, command, monkeypatch) -> None:
    monkeypatch.chdir(world)
    wrong, right, code = WRONG[case]
    ended = command(*wrong.split(), "--out", tmp_path / "run")
    assert (ended.code, ended.out) == (code, ""), ended.err
    assert "unexpected" not in ended.err
    assert not (tmp_path / "run").exists()
    corrected = command(*right.split(), "--out", tmp_path / "run")
    assert corrected.code == 0, corrected.err


NEAR = {
    "mesure gpt2": "measure",
    "vectors x.npy --existing resum": "resume",
    "measure gpt2 --specials kep": "keep",
    "measure gpt2 --documents line": "lines",
    "measure gpt2 --dtype float31": "float32",
    "sweep series --sites hiden": "hidden",
    "models --figure 99": None,
    "models --modality visoin": "vision",
    "vectors x.npy --colunm y": "--column",
}


@pytest.mark.parametrize("words", NEAR)
def test_the_nearest_word_is_offered(words: str, world: Path, command, monkeypatch) -> None:
    monkeypatch.chdir(world)
    ended = command(*words.split())
    assert ended.code == 2
    assert ended.out == ""
    near = NEAR[words]
    assert near is None or near in ended.err.split("\n", 1)[-1], ended.err


def in_python(world: Path, **settings: Any) -> Any:
    return anisoscope.vectors(world / "x.npy", **settings)


@pytest.mark.parametrize(
    ("settings", "near"),
    [
        ({"neighbors": False}, "neighbours"),
        ({"thread": 1}, "threads"),
        ({"shards": "0/2"}, "shard"),
        ({"ot": "r"}, "out"),
    ],
)
def test_python_offers_the_nearest_keyword(settings: dict[str, Any], near: str, world: Path) -> None:
    with pytest.raises(UsageError, match=f'did you mean "{near}"'):
        in_python(world, **settings)


def test_python_offers_the_nearest_way_to_treat_what_is_there(world: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match='did you mean "replace"'):
        in_python(world, existing="replce", out=tmp_path / "run")


def test_a_plan_offers_the_nearest_setting(world: Path, tmp_path: Path, command) -> None:
    plan = tmp_path / "plan.toml"
    plan.write_text('command = "vectors"\n[settings]\nfiles = ["x.npy"]\nneighbors = false\n')
    ended = command("run", plan, "--out", tmp_path / "run")
    assert ended.code == 2
    assert 'did you mean "neighbours"' in ended.err
    assert "plan.toml" in ended.err
    plan.write_text('command = "vektors"\n[settings]\nfiles = ["x.npy"]\n')
    assert 'did you mean "vectors"' in command("run", plan).err


LIMITS = [
    ("vectors", {"files": ["x.npy"], "sample": -5}),
    ("vectors", {"files": ["x.npy"], "seed": -1}),
    ("vectors", {"files": ["x.npy"], "seed": 2**70}),
    ("vectors", {"files": ["x.npy"], "sample": 10**12}),
    ("measure", {"models": ["gpt2"], "length": "nan"}),
    ("measure", {"models": ["gpt2"], "length": -3}),
    ("measure", {"models": ["gpt2"], "limit": 0}),
    ("measure", {"models": ["gpt2"], "dtype": "int8"}),
    ("calibrate", {"files": ["x.npy"], "rate": [1.5]}),
    ("null", {"dim": [1]}),
    ("null", {"dim": [8], "n": 1}),
    ("attention", {"model": "gpt2", "sample": 0}),
    ("sweep", {"series": "embedded", "seeds": "x-y"}),
]


@pytest.mark.parametrize(("study", "settings"), LIMITS)
def test_the_limits_are_the_same_everywhere(study: str, settings: dict[str, Any], tmp_path: Path, command) -> None:
    name = list(settings)[-1]
    words: list[object] = [study]
    for key, value in settings.items():
        several = value if isinstance(value, list) else [value]
        positional = key in ("files", "models", "model", "series")
        words += several if positional else [f"--{key}={','.join(map(str, several))}"]
    by_words = command(*words, "--out", tmp_path / "words")
    lines = [f"{key} = {value!r}".replace("'nan'", "nan") for key, value in settings.items()]
    (tmp_path / "plan.toml").write_text("\n".join([f'command = "{study}"', "[settings]", *lines]))
    by_plan = command("run", tmp_path / "plan.toml", "--out", tmp_path / "plan")
    for ended in (by_words, by_plan):
        assert (ended.code, ended.out) == (2, ""), ended.err
        assert name in ended.err
    first, *rest = settings
    values = {**settings, **({name: float("nan")} if settings[name] == "nan" else {})}
    with pytest.raises(UsageError, match=name):
        getattr(anisoscope, study)(values[first] if rest else values.pop(first), **{key: values[key] for key in rest})
    assert not list(tmp_path.glob("words*"))


def test_sites_are_written_with_commas_too() -> None:
    from anisoscope.cli.options import values_of
    from anisoscope.studies.measure import MeasureSettings

    assert values_of(MeasureSettings, {"sites": ["embedding,block.*", "final_norm"]}) == {
        "sites": ["embedding", "block.*", "final_norm"]
    }
