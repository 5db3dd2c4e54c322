"""The docs tell the truth: their code runs, their commands are understood, their links lead somewhere.

Blocks marked `python` and `sh` run, in the order of the page; a block marked `text` after one of them is what it
prints. Blocks marked `console` need models or data that are not here: their commands are parsed. The reference is what
the code generates (`py` marks its signatures), and the clouds of the pictures do to the metrics what the page says.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import tomllib
from importlib import import_module
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from anisoscope.cli.main import COMMANDS, app

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "scripts"))

explanation_clouds, make_reference, reference_commands = map(
    import_module, ("explanation_clouds", "make_reference", "reference_commands")
)

TEXTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(ROOT.glob("docs/**/*.md"))]
_BLOCK = re.compile(r"^```(python|sh|text|console)\n(.*?)^```", re.MULTILINE | re.DOTALL)
_SHELL = "import subprocess as _subprocess\n_subprocess.run(['bash', '-ec', {text!r}], check=True)"


def blocks(page: Path, *kinds: str) -> list[tuple[str, str]]:
    found = _BLOCK.findall(page.read_text(encoding="utf-8"))
    return [(kind, text) for kind, text in found if kind in kinds and not text.startswith("make ")]


def needs_weights(page: Path) -> bool:
    """The gallery and the studies: their commands take real models, and minutes."""
    return page.relative_to(ROOT).parts[:2] in (("docs", "gallery"), ("docs", "studies"))


RUNNING = [page for page in TEXTS if blocks(page, "python", "sh") and not needs_weights(page)]


@pytest.mark.parametrize("page", RUNNING, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_block_of_a_page_runs(page: Path, tmp_path: Path) -> None:
    found = blocks(page, "python", "sh", "text")
    program = "\n".join(
        {"python": text, "sh": _SHELL.format(text=text), "text": ""}[kind] + "\nprint(flush=True)"
        for kind, text in found
    )
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = os.environ | {"PATH": path, "COLUMNS": "120", "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    printed = [line.split() for line in done.stdout.splitlines()]
    shown = [line.split() for kind, text in found if kind == "text" for line in text.splitlines()]
    assert [line for line in shown if line not in ([], ["…"]) and not any(agree(line, one) for one in printed)] == []


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
    group = typer.main.get_command(app)
    context = group.context_class(group, info_name="anisoscope")  # pyright: ignore[reportAttributeAccessIssue]
    kinds = {page: ("console", "sh") if needs_weights(page) else ("console",) for page in TEXTS}
    texts = [text.replace("\\\n", " ") for page in TEXTS for _, text in blocks(page, *kinds[page])]
    lines = [line for text in texts for line in text.splitlines()]
    commands = [found[1] for line in lines if (found := re.search(r"(?:^|[$] |=1 )anisoscope (.*)", line))]
    assert len(commands) > 50
    for line in commands:
        if "[OPTIONS]" not in line and "--help" not in line:
            name, command, rest = group.resolve_command(context, shlex.split(line, comments=True))
            command.make_context(name, list(rest), parent=context)  # an error names the option


@pytest.mark.parametrize("command", COMMANDS)
def test_the_reference_has_the_options_of_the_help(command: str) -> None:
    shown = CliRunner().invoke(app, [command, "--help"], terminal_width=200).output
    lines = re.findall(r"^  +(?:-\w, )?(--[a-z-]+)(?:, -\w)?(?: / (--[a-z-]+))?", shown, re.MULTILINE)
    listed = {name for pair in lines for name in pair if name} - {"--help"}
    options = " ".join(one.written for one in reference_commands.parameters(command) if one.is_option)
    assert set(re.findall(r"`(--[a-z-]+)`", options)) == listed


def test_the_reference_is_what_the_code_says() -> None:
    stale = [
        name
        for name, text in make_reference.pages().items()
        if (make_reference.PAGES / name).read_text(encoding="utf-8") != text
    ]
    assert stale == [], "run scripts/make_reference.py"


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
