"""`--shard I/N` and `merge`: any cut adds up to one pass, and what does not fit is named."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import anisoscope
import cases
from anisoscope.errors import StoreError

WITHIN = {"vectors": 1e-12, "calibrate": 1e-12}
SHARDED = ("vectors", "calibrate", "measure", "attention", "sweep", "final-norm")


@pytest.mark.parametrize("command", SHARDED)
def test_merged_shards_are_one_pass(command: str, world: Path, tmp_path: Path, command_line) -> None:
    words = cases.words_of(command, world)
    assert command_line(*words, "--out", tmp_path / "whole").code == 0
    for index in range(3):
        ended = command_line(*words, "--shard", f"{index}/3", "--out", tmp_path / f"{index}")
        assert ended.code == 0, ended.err
    merged = command_line("merge", *(tmp_path / f"{k}" for k in (2, 0, 1)), "-o", tmp_path / "merged", "--no-figures")
    assert merged.code == 0, merged.err
    cases.assert_same(tmp_path / "whole", tmp_path / "merged", within=WITHIN.get(command, 1e-9))
    whole, found = (anisoscope.open_run(tmp_path / name) for name in ("whole", "merged"))
    assert str(found.verdict) == str(whole.verdict)
    assert found.run.manifest["data"] == whole.run.manifest["data"]
    assert found.run.manifest["shard"] is None


@pytest.mark.parametrize("command", ["attention", "measure"])
def test_more_shards_than_documents(command: str, world: Path, tmp_path: Path, command_line) -> None:
    """Empty shards are runs like any other."""
    words = [*cases.words_of(command, world), "--limit", 3]
    assert command_line(*words, "--out", tmp_path / "whole").code == 0
    for index in range(8):
        ended = command_line(*words, "--shard", f"{index}/8", "--out", tmp_path / f"{index}")
        assert ended.code == 0, ended.err
    merged = command_line("merge", *(tmp_path / f"{k}" for k in range(8)), "-o", tmp_path / "merged", "--no-figures")
    assert merged.code == 0, merged.err
    cases.assert_same(tmp_path / "whole", tmp_path / "merged", within=1e-9)


@pytest.fixture(scope="module")
def shards(world: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three shards, and shards that do not fit them."""
    folder = tmp_path_factory.mktemp("shards")
    options = {"column": "x", "group": "document", "neighbours": False}
    cases.write_vectors(folder / "other.parquet", seed=5)
    vectors = anisoscope.vectors
    for index in range(3):
        vectors(world / "vectors.parquet", out=folder / f"{index}", shard=f"{index}/3", **options)
    vectors(world / "vectors.parquet", out=folder / "of two", shard="0/2", **options)
    vectors(world / "vectors.parquet", out=folder / "whole", **options)
    vectors(world / "vectors.parquet", out=folder / "seed", shard="2/3", seed=1, **options)
    vectors(folder / "other.parquet", out=folder / "data", shard="2/3", **options)
    anisoscope.null(8, out=folder / "null")
    # the same settings, other data: as after an edit between two shards
    shutil.copy(world / "vectors.parquet", folder / "edited.parquet")
    vectors(folder / "edited.parquet", out=folder / "before", shard="0/2", **options)
    cases.write_vectors(folder / "edited.parquet", seed=6)
    vectors(folder / "edited.parquet", out=folder / "after", shard="1/2", **options)
    return folder


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (["0", "2"], "missing: 1/3"),
        (["0"], "missing: 1/3, 2/3"),
        (["0", "1", "1", "2"], "there twice: 1/3"),
        (["0", "1", "of two"], "different splits"),
        (["0", "1", "whole"], "not of a shard"),
        (["0", "1", "seed"], "seed = 1"),
        (["0", "1", "data"], "other.parquet"),
        (["before", "after"], "the shards read another vectors"),
        (["null"], "cannot be merged"),
        (["0", "1", "nowhere"], "no run here"),
    ],
)
def test_shards_that_do_not_fit_are_named(
    names: list[str], said: str, shards: Path, tmp_path: Path, command_line
) -> None:
    ended = command_line("merge", *(shards / name for name in names), "--out", tmp_path / "merged")
    assert ended.code in (1, 2)
    assert said in ended.err
    assert "unexpected" not in ended.err
    assert not (tmp_path / "merged").exists()


def test_a_merge_that_could_not_be_written_leaves_the_folder_free(shards: Path, tmp_path: Path, monkeypatch) -> None:
    def full(*words: object) -> None:
        raise OSError(28, "No space left on device")

    runs = [shards / str(index) for index in range(3)]
    with monkeypatch.context() as patched:
        patched.setattr("anisoscope.runs.store._write_manifest", full)
        with pytest.raises(StoreError, match="No space left"):
            anisoscope.merge(runs, out=tmp_path / "merged")
    assert not (tmp_path / "merged").exists()
    assert anisoscope.merge(runs, out=tmp_path / "merged").run is not None


def test_shards_of_different_versions_are_merged_with_a_note(
    world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from anisoscope import merge, vectors
    from anisoscope.runs import store

    known = store.versions()
    for i, numpy in enumerate(("2.4.6", "2.3.1")):
        monkeypatch.setattr(store, "versions", lambda numpy=numpy: {**known, "numpy": numpy})
        vectors(world / "vectors.parquet", column="x", out=tmp_path / str(i), shard=f"{i}/2", neighbours=False)
    merged = merge([tmp_path / "0", tmp_path / "1"], tmp_path / "merged")
    assert "the shards were made with different versions: numpy 2.3.1, 2.4.6" in merged.notes


@pytest.mark.parametrize("shard", ["3/3", "-1/3", "1", "a/b", "0/0", "0/5000", "1/2/3", ""])
def test_a_wrong_shard_is_refused_before_any_work(shard: str, world: Path, tmp_path: Path, command_line) -> None:
    ended = command_line(*cases.words_of("vectors", world), f"--shard={shard}", "--out", tmp_path / "run")
    assert ended.code == 2
    assert "not a shard" in ended.err
    assert not (tmp_path / "run").exists()


def test_a_folder_of_another_shard_is_not_used(world: Path, tmp_path: Path, command_line) -> None:
    words = [*cases.words_of("vectors", world), "--out", tmp_path / "run"]
    assert command_line(*words, "--shard", "0/2").code == 0
    refused = command_line(*words, "--shard", "1/2")
    assert refused.code == 1
    assert "another shard" in refused.err
    assert command_line(*words).code == 1


def test_sums_that_are_not_of_all_the_data_are_refused(world: Path, tmp_path: Path, monkeypatch) -> None:
    """A batch that is lost on its way is noticed, whatever lost it."""
    from anisoscope.errors import StoreError
    from anisoscope.models.batches.plan import Batches

    iterate = Batches.iterate

    def losing(self, *arguments):
        for number, found in enumerate(iterate(self, *arguments)):
            if number != 1:
                yield found

    monkeypatch.setattr(Batches, "iterate", losing)
    with pytest.raises(StoreError, match="not of all the data"):
        anisoscope.attention(world / "gpt2", world / "texts.txt", documents="lines", batch_tokens=40)
