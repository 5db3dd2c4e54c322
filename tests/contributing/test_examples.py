"""The examples of CONTRIBUTING.md, applied to a copy of the package as they are printed, work."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import anisoscope

ROOT = Path(__file__).parents[2]
CHROMIUM = Path("/usr/bin/chromium")
_BLOCK = re.compile(r"`((?:src|tests)/[^`]+)`:\n\n```(?:py|js)\n(.*?)^```", re.MULTILINE | re.DOTALL)
EXAMPLES = dict(_BLOCK.findall((ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")))
ENTRIES = {  # where an example goes that is not a file: after this line, or before this text
    "clouds.py": "_DIRECTIONS = (\n",
    "families.py": '        "distilbert": ',
}


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the package with all examples in it."""
    folder = tmp_path_factory.mktemp("contributed")
    source = Path(anisoscope.__file__).parent
    left_out = shutil.ignore_patterns("__pycache__", "embedded_series")
    shutil.copytree(source, folder / "src" / "anisoscope", ignore=left_out)
    for name, text in EXAMPLES.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(_inserted(path, text) if path.exists() else text, encoding="utf-8")
    return folder


def _inserted(path: Path, text: str) -> str:
    before, anchor = path.read_text(encoding="utf-8"), ENTRIES[path.name]
    assert before.count(anchor) == 1
    return before.replace(anchor, anchor + text if anchor.endswith("\n") else text + anchor)


def run(package: Path, *words: str, code: int = 0) -> str:
    environment = os.environ | {"PYTHONPATH": str(package / "src"), "COLUMNS": "120", "OMP_NUM_THREADS": "1"}
    environment |= {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [sys.executable, *words], cwd=package, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout


def test_a_metric_is_one_declaration_and_a_study_is_one_module(package: Path) -> None:
    """Their tests, as printed: they fail where the package does not have the metric and the study."""
    tests = [name for name in EXAMPLES if name.startswith("tests/")]
    assert len(tests) == 2
    assert "2 passed" in run(package, "-m", "pytest", "-p", "no:cacheprovider", *tests)
    shown = run(package, "-m", "anisoscope", "vectors", "--no-neighbours", "--all", *_vectors(package))
    assert re.search(r"mean squared norm +\d+\.?\d* +\d+\.?\d* … \d", shown)


def _vectors(package: Path) -> list[str]:
    import numpy as np

    path = package / "x.npy"
    if not path.exists():
        np.save(path, np.random.default_rng(0).standard_normal((30_000, 8)) + 1.0)
    return [path.name]


KILLED = """
import os, signal
from anisoscope.runs.work import blocks

plain = blocks.blocks_of
def killed(*arguments):
    for number, block in enumerate(plain(*arguments)):
        if number == 2:
            os.kill(os.getpid(), signal.SIGTERM)
        yield block
blocks.blocks_of = killed

from anisoscope.cli.main import main
main(["lengths", "x.npy", "--out", "killed"])
"""


def test_a_study_has_a_command_toml_reuse_resume_and_shards(package: Path) -> None:
    _vectors(package)
    assert "How long the vectors of a file are" in run(package, "-m", "anisoscope", "--help")
    assert "--squared" in run(package, "-m", "anisoscope", "lengths", "--help")
    run(package, "-c", KILLED, code=143)
    assert (package / "killed" / "partial").is_dir()
    assert not (package / "killed" / "manifest.json").exists()
    driver = f"{COMMAND}\n{DRIVER}"
    assert 'command = "lengths"' in run(package, "-c", driver)


COMMAND = """
from pathlib import Path
from anisoscope.cli.main import main
import anisoscope

def command(*words):
    try: main(list(words))
    except SystemExit as end: assert not end.code, words
"""
DRIVER = """
command("lengths", "x.npy", "--out", "whole")
command("lengths", "x.npy", "--out", "killed")
command("run", "whole/run.toml", "--out", "again")
command("lengths", "x.npy", "--shard", "0/2", "--out", "s0")
command("lengths", "x.npy", "--shard", "1/2", "--out", "s1")
command("merge", "s0", "s1", "-o", "merged")
values = {run: anisoscope.open_run(run).value("mean_norm") for run in ("whole", "killed", "again", "merged")}
assert values["killed"] == values["again"] == values["whole"], values
assert abs(values["merged"] / values["whole"] - 1) < 1e-12, values
written = Path("whole/manifest.json").stat().st_mtime_ns
command("lengths", "x.npy", "--out", "whole")
assert Path("whole/manifest.json").stat().st_mtime_ns == written, "not used again"
print(Path("whole/run.toml").read_text())
"""


OWL = """
import torch
from torch import nn
from transformers import ByT5Tokenizer, PretrainedConfig, PreTrainedModel

import anisoscope
from anisoscope.capture.sites import map_sites

class OwlConfig(PretrainedConfig):
    model_type = "owl"

class OwlModel(PreTrainedModel):
    config_class = OwlConfig

    def __init__(self, config):
        super().__init__(config)
        self.words = nn.Embedding(400, 16)
        blocks = nn.ModuleList(nn.Linear(16, 16) for _ in range(2))
        self.trunk = nn.ModuleDict({"blocks": blocks, "norm": nn.LayerNorm(16)})
        self.post_init()

    def forward(self, input_ids, attention_mask=None):
        x = self.words(input_ids)
        for block in self.trunk["blocks"]:
            x = x + block(x)
        return self.trunk["norm"](x)

model = OwlModel(OwlConfig())
assert map_sites(model).known
texts = [f"text {k}" for k in range(40)]
options = {"modality": "text", "neighbours": False, "spectrum": False}
found = anisoscope.measure(model, texts, processor=ByT5Tokenizer(), **options)
print([site for site in found.sites() if site != "layers"])
"""


def test_a_model_family_is_one_entry(package: Path) -> None:
    assert "['embeddings', 'block.0', 'block.1', 'final_norm']" in run(package, "-c", OWL)


def test_a_section_of_the_page_is_one_script(package: Path) -> None:
    _vectors(package)
    run(
        package,
        "-c",
        f"{COMMAND}\ncommand('lengths', 'x.npy', '--squared', '--out', 'run-page')\n"
        "command('report', 'run-page', '-o', 'page.html')",
    )
    assert "How long the vectors are" in (package / "page.html").read_text(encoding="utf-8")


@pytest.mark.browser
@pytest.mark.skipif(not CHROMIUM.exists(), reason=f"there is no Chromium at {CHROMIUM}")
def test_the_section_is_drawn(package: Path) -> None:
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    if not (package / "page.html").exists():
        test_a_section_of_the_page_is_one_script(package)
    wrong: list[str] = []
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=str(CHROMIUM), args=["--no-sandbox", "--disable-gpu"])
        page = browser.new_page()
        page.on("console", lambda message: wrong.append(message.text))
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.goto((package / "page.html").as_uri())
        section = page.locator("#lengths")
        section.get_by_role("cell", name="mean squared norm").wait_for(timeout=300_000)
        browser.close()
    assert wrong == []
