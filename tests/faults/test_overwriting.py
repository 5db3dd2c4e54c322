"""Nothing is overwritten that was not asked for: runs, inputs, files of other kinds; `--force` only where it may."""

from __future__ import annotations

import hashlib
import os
import shutil
from pathlib import Path

import numpy as np
import pytest

import anisoscope
from anisoscope.errors import StoreError, UsageError


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Vectors, two runs of them, and files of other people."""
    folder = tmp_path_factory.mktemp("original")
    np.save(folder / "x.npy", np.random.default_rng(0).standard_normal((300, 6)))
    for seed in (0, 1):
        anisoscope.vectors(folder / "x.npy", seed=seed, neighbours=False, out=folder / f"run{seed}")
    (folder / "letter.csv").write_text("name,amount\nme,3\n")
    (folder / "config.json").write_text('{"mine": 1}')
    (folder / "README.md").write_text("# Mine\n")
    (folder / "texts").mkdir()
    (folder / "texts/a.txt").write_text("A text.\n" * 1000)
    return folder


@pytest.fixture
def world(original: Path, tmp_path: Path) -> Path:
    return shutil.copytree(original, tmp_path / "world")


def digests(folder: Path) -> dict[str, str]:
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


VECTORS = "vectors x.npy --no-neighbours"
REFUSED = {
    "compare into its first run": "compare run0 run1 --out run0",
    "compare in place of its first run": "compare run0 run1 --out run0 --existing replace",
    "compare in place of its second run": "compare run0 run1 --out run1 --existing replace",
    "compare above its runs": "compare run0 run1 --out . --existing replace",
    "merge in place of a shard": "merge run0 run1 --out run0 --existing replace",
    "csv over the vectors": f"{VECTORS} --out new --csv x.npy",
    "csv over the vectors by force": f"{VECTORS} --out new --csv x.npy --force",
    "csv over a file of a run": f"{VECTORS} --out new --csv run0/measurements.parquet --force",
    "csv over a file of the run to be made": f"{VECTORS} --out new --csv new/manifest.json",
    "csv in place of the lock": f"{VECTORS} --out new --csv new/.lock",
    "csv over another table": f"{VECTORS} --out new --csv letter.csv",
    "csv over a folder": f"{VECTORS} --out new --csv texts",
    "csv over JSON": "show run0 --csv config.json",
    "csv over a manifest": "show run0 --csv run0/manifest.json --force",
    "a run in a store": f"{VECTORS} --out s3://bucket/run",
    "csv into a store": "show run0 --csv s3://bucket/x.csv",
    "a training in a store": "pretrain --data texts/a.txt --out s3://bucket/run",
    "page into a store": "report run0 -o gs://bucket/x.html",
    "page over a table": "report run0 -o run0/measurements.parquet --force",
    "page over JSON": "report run0 -o config.json",
    "page over Markdown": "report run0 -o README.md",
    "page over vectors": "report run0 -o x.npy",
    "a run in a file": f"{VECTORS} --out x.npy",
    "a run in a folder of texts": f"{VECTORS} --out texts",
    "a run in place of a folder of texts": f"{VECTORS} --out texts --existing replace",
    "a run of other settings": f"{VECTORS} --seed 7 --out run0",
    "a run where none may be": f"{VECTORS} --out run0 --existing refuse",
}


@pytest.mark.parametrize("case", REFUSED)
def test_it_is_refused_before_anything_is_written(case: str, world: Path, command_line, monkeypatch) -> None:
    monkeypatch.chdir(world)
    before = digests(world)
    ended = command_line(*REFUSED[case].split())
    assert ended.code in (1, 2), ended
    assert ended.out == ""
    assert ended.err.startswith("anisoscope: ")
    assert "unexpected" not in ended.err
    assert digests(world) == before


@pytest.mark.parametrize("name", ["stdout", "fifo", "-"])
def test_a_stream_is_not_replaced_by_a_file(name: str, world: Path, command_line, monkeypatch) -> None:
    """A file renamed to /dev/stdout would stay there in its place."""
    monkeypatch.chdir(world)
    Path("stdout").symlink_to("/proc/self/fd/1")
    os.mkfifo("fifo")
    ended = command_line("show", "run0", "--csv", name, "--force")
    assert (ended.code, ended.out) == (2, "")
    assert "stream" in ended.err
    assert Path("stdout").is_symlink()
    assert Path("fifo").is_fifo()
    assert not Path("-").exists()


def test_an_input_is_refused_before_any_work(world: Path, command_line, monkeypatch) -> None:
    monkeypatch.chdir(world)
    monkeypatch.setattr("anisoscope.runs.perform.perform", lambda *_, **__: pytest.fail("it worked"))
    assert "overwrite an input" in command_line("vectors", "x.npy", "--csv", "x.npy").err


@pytest.mark.parametrize("command", ["run", "merge"])
def test_a_run_is_only_replaced_by_one_that_can_be_made(command: str, world: Path, command_line, monkeypatch) -> None:
    monkeypatch.chdir(world)
    (world / "bad.npy").write_bytes(b"no array")
    for k in (0, 1):
        anisoscope.vectors("x.npy", shard=f"{k}/2", out=f"shard{k}")
    words = f"{VECTORS} --out made" if command == "run" else "merge shard0 shard1 --out merged"
    assert command_line(*words.split()).code == 0
    before = digests(world)
    spoilt = Path("shard1/moments.safetensors")
    kept = spoilt.read_bytes()
    spoilt.write_bytes(kept[:-1])
    refused = command_line(*words.replace("x.npy", "bad.npy").split(), "--existing", "replace")
    assert refused.code == 1, refused
    spoilt.write_bytes(kept)
    assert digests(world) == before
    assert command_line(*words.split(), "--existing", "replace").code == 0


def test_force_replaces_a_file_of_another_kind(world: Path, command_line, monkeypatch) -> None:
    monkeypatch.chdir(world)
    assert command_line("show", "run0", "--csv", "letter.csv", "--force").code == 0
    assert (world / "letter.csv").read_text().replace('"', "").startswith("run,model,")
    assert command_line("report", "run0", "-o", "README.md", "--force").code == 0
    assert (world / "README.md").read_text().startswith("<!DOCTYPE html>")


def test_what_anisoscope_wrote_may_be_written_again(world: Path, command_line, monkeypatch) -> None:
    monkeypatch.chdir(world)
    for _ in range(2):
        assert command_line("show", "run0", "--csv", "t.csv").code == 0
        assert command_line("report", "run0", "-o", "page.html").code == 0


def test_a_measurement_is_not_saved_over_something(world: Path) -> None:
    found = anisoscope.open_run(world / "run0")
    before = digests(world)
    for folder in ("run1", "texts", "x.npy"):
        with pytest.raises((StoreError, UsageError)):
            found.save(world / folder)
    assert digests(world) == before
    found.save(world / "run1", existing="replace")
    assert anisoscope.open_run(world / "run1").rows == found.rows


def test_saving_a_run_in_its_own_place_loses_nothing(world: Path) -> None:
    found = anisoscope.open_run(world / "run0")
    state = found.run.state()
    found.save(world / "run0", existing="replace")
    assert anisoscope.open_run(world / "run0").run.state().keys() == state.keys()


@pytest.mark.parametrize("path", ["x.npy", "run0/manifest.json", "README.md"])
def test_a_page_from_python_is_guarded_too(path: str, world: Path) -> None:
    before = digests(world)
    with pytest.raises(UsageError, match="overwrite"):
        anisoscope.report(world / "run0", world / path)
    assert digests(world) == before


def test_a_run_from_python_does_not_replace_its_input(world: Path) -> None:
    before = digests(world)
    with pytest.raises(UsageError, match="own input"):
        anisoscope.compare(world / "run0", world / "run1", out=world / "run0", existing="replace")
    assert digests(world) == before


def test_a_failed_page_leaves_the_former_one(world: Path, command_line, monkeypatch) -> None:
    monkeypatch.chdir(world)
    assert command_line("report", "run0", "-o", "page.html").code == 0
    before = (world / "page.html").read_bytes()
    monkeypatch.setattr("anisoscope.report.page.write.page_html", lambda *_, **__: 1 / 0)
    ended = command_line("report", "run0", "-o", "page.html")
    assert ended.code == 1
    assert (world / "page.html").read_bytes() == before
    assert not list(world.glob(".*.partial"))
