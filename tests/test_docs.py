"""The docs tell the truth: their code runs, their commands are understood, their links lead somewhere.

Blocks marked `python` and `sh` run in the order of the page, each `python` block on its own: whoever copies it has all
of it. A block marked `text` after one of them is what it prints. Blocks marked `console` need models or data that are
not here: their commands are parsed. The reference is what the code generates (`py` marks its signatures), and the
clouds of the pictures do to the metrics what the page says.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import tomllib
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pyarrow.parquet as pq
import pytest
import typer
import yaml

from anisoscope.cli.main import app, commands, main

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "scripts"))

explanation_clouds, make_reference = map(import_module, ("explanation_clouds", "make_reference"))

TEXTS = [*sorted(ROOT.glob("*.md")), *sorted(ROOT.glob("docs/**/*.md"))]
_BLOCK = re.compile(r"^```(python|sh|text|console)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def blocks(page: Path, *kinds: str) -> list[tuple[str, str]]:
    found = _BLOCK.findall(page.read_text(encoding="utf-8"))
    return [(kind, text) for kind, text in found if kind in kinds and not text.startswith("make ")]


def needs_weights(page: Path) -> bool:
    """The gallery and the studies: their commands take real models, and minutes."""
    return page.relative_to(ROOT).parts[:2] in (("docs", "gallery"), ("docs", "studies"))


RUNNING = [page for page in TEXTS if blocks(page, "python", "sh") and not needs_weights(page)]


@pytest.mark.parametrize("page", RUNNING, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_block_of_a_page_runs(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    found = blocks(page, "python", "sh", "text")
    for kind, text in found:
        if kind == "python":
            exec(compile(text, str(page), "exec"), {"__name__": "__main__"})
        elif kind == "sh":
            run_shell(text)
    printed = [line.split() for line in capsys.readouterr().out.splitlines()]
    shown = [line.split() for kind, text in found if kind == "text" for line in text.splitlines()]
    assert [line for line in shown if line not in ([], ["…"]) and not any(agree(line, one) for one in printed)] == []


def run_shell(text: str) -> None:
    """Run the lines of a block: plain calls of the command line in this process, anything else in a shell."""
    lines = text.replace("\\\n", " ").splitlines()
    plain = all(re.fullmatch(r"(anisoscope|cat) [^|&;$<>*()`]*", line) for line in lines)
    for line in lines if plain else [text]:
        if plain and line.startswith("anisoscope "):
            with pytest.raises(SystemExit) as ended:
                main(shlex.split(line, comments=True)[1:])
            assert ended.value.code in (None, 0), line
        else:
            done = subprocess.run(["bash", "-euo", "pipefail", "-c", line], capture_output=True, text=True, check=False)
            assert done.returncode == 0, done.stderr
            print(done.stdout)


def agree(shown: list[str], printed: list[str]) -> bool:
    """Whether two lines have the same words and, but for the last digits, the same numbers."""
    return len(shown) == len(printed) and all(map(same, shown, printed))


def same(shown: str, printed: str) -> bool:
    try:
        return float(shown) == pytest.approx(float(printed), rel=0.02, abs=0.002)
    except ValueError:
        return shown == printed


def test_every_command_that_is_not_run_is_understood() -> None:
    """Commands that name models and data of the reader are parsed, with their options."""
    kinds = {page: ("console", "sh") if needs_weights(page) else ("console",) for page in TEXTS}
    texts = [text.replace("\\\n", " ") for page in TEXTS for _, text in blocks(page, *kinds[page])]
    lines = [line for text in texts for line in text.splitlines()]
    commands = [found[1] for line in lines if (found := re.search(r"(?:^|[$] |=1 |-m )anisoscope (.*)", line))]
    assert len(commands) > 50
    for line in commands:
        if "--help" not in line:
            parse(line)


def parse(line: str) -> None:
    """Let the command line read what comes after `anisoscope`, and no more; an error names the option."""
    words = shlex.split(line, comments=True)
    ends = [place for place, word in enumerate(words) if word in ("&", "|", ";", "done", "&&")]
    group = typer.main.get_command(app)
    context = group.context_class(group, info_name="anisoscope")  # pyright: ignore[reportAttributeAccessIssue]
    name, command, rest = group.resolve_command(context, words[: ends[0]] if ends else words)
    command.make_context(name, list(rest), parent=context)


SUBMITIT = """
class AutoExecutor:
    def __init__(self, folder): pass
    def update_parameters(self, **options): pass
    def map_array(self, function, *lists):
        return [Job(function(*one)) for one in zip(*lists, strict=True)]
class Job:
    def __init__(self, value): self.value = value
    def result(self): return self.value
"""


@pytest.mark.parametrize("scheduler", ["Slurm", "Kubernetes", "submitit"])
def test_a_scheduler_is_asked_for_every_shard_once(scheduler: str, tmp_path: Path) -> None:
    """The scripts of docs/scale.md, as they are, with a command in place of ours that writes down what it was given."""
    section = (ROOT / "docs" / "scale.md").read_text(encoding="utf-8").split(f"## {scheduler}\n")[1].split("\n## ")[0]
    [script] = re.findall(r"^```(?:bash|yaml|py)\n(.*?)^```", section, re.MULTILINE | re.DOTALL)
    command = tmp_path / "anisoscope"
    command.write_text(f'#!/bin/bash\necho "$@" >> {tmp_path}/asked\n', encoding="utf-8")
    command.chmod(0o755)
    (tmp_path / "submitit.py").write_text(SUBMITIT, encoding="utf-8")
    path = {"PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}", "PYTHONPATH": str(tmp_path)}
    if scheduler == "Kubernetes":
        job = yaml.safe_load(script)["spec"]
        [container] = job["template"]["spec"]["containers"]
        words, count, number = [*container["command"], *container["args"]], job["completions"], "JOB_COMPLETION_INDEX"
    elif scheduler == "Slurm":
        words, count, number = (
            ["bash", "-c", script],
            int(re.findall(r"--array=0-(\d+)", script)[0]) + 1,
            "SLURM_ARRAY_TASK_ID",
        )
    else:
        words, count, number = [sys.executable, "-c", script], 1, "-"
    for index in range(count):
        subprocess.run(words, env=os.environ | path | {number: str(index)}, cwd=tmp_path, check=True)
    asked = [
        line for line in (tmp_path / "asked").read_text(encoding="utf-8").splitlines() if line.startswith("measure ")
    ]
    assert [re.search(r"--shard (\S+)", line)[1] for line in asked] == [f"{index}/8" for index in range(8)]  # pyright: ignore
    assert len({re.search(r"--out (\S+)", line)[1] for line in asked}) == 8  # pyright: ignore[reportOptionalSubscript]
    for line in asked:
        parse(line)


def pinned(library: str) -> bool:
    """Whether the version is that of constraints.txt: others lay out the same help otherwise."""
    return f"{library}=={version(library)}\n" in (ROOT / "constraints.txt").read_text(encoding="utf-8")


@pytest.mark.skipif(not (pinned("typer") and pinned("pydantic")), reason="generated with the pinned versions")
def test_the_reference_is_what_the_code_says() -> None:
    stale = [
        name
        for name, text in make_reference.pages().items()
        if (make_reference.PAGES / name).read_text(encoding="utf-8") != text
    ]
    assert stale == [], "run scripts/make_reference.py"


def test_every_option_of_every_command_is_in_the_reference() -> None:
    """Of commands within commands too: what the parser knows stands under the heading of its command."""
    text = (make_reference.PAGES / "cli.md").read_text(encoding="utf-8")
    sections = {part.partition("`")[0]: part for part in re.split(r"^#+ `anisoscope ", text, flags=re.MULTILINE)[1:]}

    def check(name: str, command: Any) -> None:
        flags = [flag for one in command.params for flag in one.opts if flag.startswith("--")]
        assert [flag for flag in flags if flag not in sections[name]] == [], name
        for key, one in getattr(command, "commands", {}).items():
            check(f"{name} {key}", one)

    for name in commands():
        check(name, make_reference._loaded(name))
    assert {"remedy fit", "remedy apply", "remedy export"} <= sections.keys()


def test_what_is_printed_as_json_and_kept_as_a_table_follow_the_schema(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    schema = json.loads((make_reference.PAGES / "schema.json").read_text(encoding="utf-8"))
    np.save(tmp_path / "x.npy", np.random.default_rng(0).standard_normal((200, 4)))
    with pytest.raises(SystemExit):
        main(["vectors", str(tmp_path / "x.npy"), "--json", "--no-figures", "--out", str(tmp_path / "run")])
    printed = json.loads(capsys.readouterr().out)
    jsonschema.Draft202012Validator(schema).validate(printed)
    row = {"$ref": "#/$defs/row", "$defs": schema["$defs"]}
    for kept in pq.read_table(tmp_path / "run" / "measurements.parquet").to_pylist():
        jsonschema.Draft202012Validator(row).validate(kept)
    for wrong in ({**printed, "schema": 2}, {**printed, "more": 1}, {**printed, "measurements": [{"value": "0.1"}]}):
        assert not jsonschema.Draft202012Validator(schema).is_valid(wrong)


def test_the_rules_of_a_verdict_are_those_of_the_code() -> None:
    import anisoscope.inference.verdict as verdict

    rules = [line for line in (verdict.__doc__ or "").splitlines() if line.startswith("| ")]
    shown = (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8").splitlines()
    assert len(rules) > 5
    assert [line for line in rules if line not in shown] == []


def test_the_trainer_logs_the_names_that_the_how_to_gives() -> None:
    from transformers.integrations.integration_utils import rewrite_logs

    from anisoscope.watch.monitor import LOGGED

    text = (ROOT / "docs" / "howto.md").read_text(encoding="utf-8")
    assert all(f"`{metric}`" in text for metric in LOGGED)
    assert all(f"`{name}`" in text for name in rewrite_logs({"anisotropy/block.1/mean_cosine": 0.5}))


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as the site makes them."""
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    titles = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", title).strip().lower()) for title in titles}


@pytest.mark.parametrize("page", TEXTS, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_between_pages_leads_somewhere(page: Path) -> None:
    for target, anchor in re.findall(r"\]\(([^)#:]*)(?:#([^)]*))?\)", page.read_text(encoding="utf-8")):
        leads_to = page.parent / target if target else page
        assert leads_to.exists(), target
        assert not anchor or leads_to.suffix != ".md" or anchor in anchors(leads_to), f"{target}#{anchor}"


def test_every_page_can_be_reached() -> None:
    """From the navigation, or from a page that is in it."""
    listed = str(tomllib.loads((ROOT / "zensical.toml").read_text(encoding="utf-8"))["project"]["nav"])
    pages = {page for page in TEXTS if page.is_relative_to(ROOT / "docs")}
    shown = {page for page in pages if page.relative_to(ROOT / "docs").as_posix() in listed}
    linked = {
        (page.parent / target).resolve()
        for page in shown
        for target in re.findall(r"\]\(([^)#:]+[.]md)", page.read_text(encoding="utf-8"))
    }
    assert pages - shown - linked == set()


def readings(name: str) -> list[dict[str, float]]:
    """What the metrics that need no neighbours say of a cloud, reading by reading."""
    measured = [reading.measure(neighbours=False) for reading in explanation_clouds.CLOUDS[name]().readings]
    return [{metric: value for metric, (value, _) in one.items() if value is not None} for one in measured]


def test_clouds_fool_the_cosine() -> None:
    [cones], [plane], [text] = readings("opposite-cones"), readings("thin-plane"), readings("long-text")
    assert abs(cones["mean_cosine"]) < 0.001
    assert cones["rayleigh_p"] > 0.5
    assert cones["participation_ratio_unbiased"] < 2
    assert abs(plane["mean_cosine"]) < 0.001
    assert plane["participation_ratio_unbiased"] == pytest.approx(16, rel=0.02)
    assert text["mean_cosine"] > 0.1
    assert abs(text["mean_cosine_inter"]) < 0.01


def test_clouds_fool_the_spectrum() -> None:
    [ball], [clusters, one] = readings("far-ball"), readings("two-clusters")
    assert ball["isoscore"] > 0.97
    assert ball["mean_cosine"] > 0.85
    assert clusters["participation_ratio_unbiased"] < 3
    assert one["participation_ratio_unbiased"] > 60


def test_clouds_fool_what_depends_on_norms_and_on_the_basis() -> None:
    everything, rest = readings("attention-sink")
    assert everything["drift_ratio"] < 0.05 < 0.45 < rest["drift_ratio"]
    assert min(everything["mean_cosine"], rest["mean_cosine"]) > 0.45
    plain, without, turned = readings("massive-coordinate")
    assert plain["mean_cosine"] == pytest.approx(turned["mean_cosine"], abs=1e-9)
    assert plain["cosine_share"] > 0.95
    assert turned["cosine_share"] < 0.2
    assert abs(without["mean_cosine"]) < 0.01
