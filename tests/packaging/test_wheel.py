"""The wheel in an environment of its own: built from the sdist, installed without the clone, used as a person would.

The environment sees the libraries that are installed here, but neither the clone nor its editable install.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

from anisoscope import __version__

pytest.importorskip("build")
pytest.importorskip("hatchling")
ROOT = Path(__file__).parents[2]
LARGEST = 8_000_000


def run(*command: object, cwd: Path) -> str:
    alone = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, check=False, cwd=cwd, env=alone)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", out, ROOT, cwd=out)  # the wheel from the sdist
    return next(out.glob("*.whl"))


@pytest.fixture(scope="module")
def place(wheel: Path) -> Path:
    """The `bin` of a fresh environment that has the wheel."""
    fresh = wheel.parent / "fresh"
    run(sys.executable, "-m", "venv", "--without-pip", fresh, cwd=wheel.parent)
    packages = next(fresh.glob("lib/python*/site-packages"))
    (packages / "libraries.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    python = fresh / "bin/python"
    run(sys.executable, "-m", "pip", "--python", python, "install", "--no-deps", "--no-index", wheel, cwd=wheel.parent)
    return python.parent


def test_every_file_of_the_package_is_in_it_but_the_second_seed(wheel: Path) -> None:
    listed = set(zipfile.ZipFile(wheel).namelist())
    files = (file.relative_to(ROOT / "src").as_posix() for file in (ROOT / "src").rglob("*") if file.is_file())
    wanted = {name for name in files if "__pycache__" not in name and ".egg-info" not in name}
    assert {name for name in wanted - listed if "embedded_series/seed-1/" not in name} == set()
    assert not [name for name in listed if "seed-1/" in name]


def test_its_size_is_what_the_documentation_says(wheel: Path) -> None:
    said = re.search(r"wheel is ([\d.]+) MB", (ROOT / "docs/tutorial.md").read_text(encoding="utf-8"))
    assert said is not None
    assert float(said[1]) == pytest.approx(wheel.stat().st_size / 1e6, abs=0.3)
    assert wheel.stat().st_size < LARGEST


def test_the_commands_work_without_the_clone(place: Path, tmp_path: Path) -> None:
    assert "Usage: anisoscope" in run(place / "anisoscope", "--help", cwd=tmp_path)
    where = run(place / "python", "-c", "import anisoscope; print(anisoscope.__file__)", cwd=tmp_path)
    assert Path(where.strip()).is_relative_to(place.parent)
    sweep = ("sweep", "embedded", "--steps", "0,64", "--limit", "1", "--length", "32", "--sites", "hidden")
    said = run(place / "anisoscope", *sweep, "--no-figures", "--out", "run", cwd=tmp_path)
    assert "step 64" in said
    run(place / "anisoscope", "report", "run", "-o", "page.html", cwd=tmp_path)
    assert (tmp_path / "page.html").read_text(encoding="utf-8").startswith("<!DOCTYPE html")
    recipes = "from anisoscope.studies.paper import recipes; print(len(recipes.figures()), len(recipes.runs()))"
    figures, runs = map(int, run(place / "python", "-c", recipes, cwd=tmp_path).split())
    assert (figures, runs) > (20, 5)


def test_nothing_in_it_needs_a_compiler_or_a_platform(wheel: Path) -> None:
    assert wheel.name == f"anisoscope-{__version__}-py3-none-any.whl"
    about = zipfile.ZipFile(wheel).read(f"{wheel.name.rsplit('-', 3)[0]}.dist-info/entry_points.txt").decode()
    assert "anisoscope = anisoscope.cli.main:main" in about  # what pipx and uvx run
