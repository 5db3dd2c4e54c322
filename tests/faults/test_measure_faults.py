"""What goes wrong while a model is measured: broken weights, missing parts, unreadable files."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import anisoscope
import cases
import zoo
from anisoscope.errors import AnisoscopeError, InputError, ModelError, StoreError, UsageError
from anisoscope.results import Result

torch.set_num_threads(1)


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return cases.write_documents(tmp_path_factory.mktemp("texts"), 12)


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return {"gpt2": str(zoo.save("gpt2", tmp_path_factory.mktemp("models") / "gpt2"))}


def measure(model: str, texts: Path, out: Path, **options: Any) -> Result:
    return anisoscope.measure(model, texts, documents="file", neighbours=False, out=out, **options)


# --- broken numbers ---------------------------------------------------------------------------------------------------


def broken(checkpoint: str, folder: Path, name: str, rows: Any = slice(None)) -> str:
    """A copy of the checkpoint in which some rows of one weight are NaN."""
    shutil.copytree(checkpoint, folder)
    weights = load_file(folder / "model.safetensors")
    key = next(key for key in weights if key.endswith(name))
    weights[key][rows] = float("nan")
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return str(folder)


def test_weights_of_nothing_but_nan_are_named_by_their_site(texts, checkpoints, tmp_path):
    model = broken(checkpoints["gpt2"], tmp_path / "nan", "h.1.mlp.c_proj.bias")
    with pytest.raises(InputError, match=r"nothing to measure at this site: block\.1") as caught:
        measure(model, texts, tmp_path / "run")
    assert "0 usable vectors" in str(caught.value)


def test_some_nan_activations_are_left_out_counted_and_noted(texts, checkpoints, tmp_path):
    ids = [zoo.processor("gpt2")(file.read_text())["input_ids"] for file in sorted(texts.iterdir())]
    rare = next(token for token in ids[7] if sum(one.count(token) for one in ids) == 1)
    behind = len(ids[7]) - ids[7].index(rare)  # attention carries it to later positions; 0 · NaN even to earlier ones
    found = measure(broken(checkpoints["gpt2"], tmp_path / "nan", "wte.weight", rare), texts, tmp_path / "run")
    n = {row.site: row.n for row in found.rows if row.metric == "mean_cosine" and row.positions == "all"}
    lost = {site: sum(map(len, ids)) - count for site, count in n.items()}
    assert lost.pop("embeddings") == 1
    assert len(lost) == 4
    assert all(behind <= count <= len(ids[7]) for count in lost.values())
    for count in (1, *lost.values()):
        told = f"{count} vector{'s' * (count != 1)} with NaN or infinite entries left out"
        assert any(told in note for note in found.notes)
    assert all(row.value is None or row.value == row.value for row in found.rows)


# --- missing parts ----------------------------------------------------------------------------------------------------


def test_a_text_model_without_tokenizer_is_refused(texts, tmp_path):
    model = str(zoo.save("gpt2", tmp_path / "bare", with_processor=False))
    with pytest.raises(ModelError, match="tokenizer"):
        measure(model, texts, tmp_path / "run")


def test_a_folder_without_a_model_is_refused(texts, tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(ModelError):
        measure(str(tmp_path / "empty"), texts, tmp_path / "run")


@pytest.mark.parametrize("content", ["", " \n\n \t"])
def test_text_without_a_word_is_refused(content, checkpoints, tmp_path):
    blank = tmp_path / "blank.txt"
    blank.write_text(content, encoding="utf-8")
    with pytest.raises(InputError, match="no text could be read"):
        measure(checkpoints["gpt2"], blank, tmp_path / "run")


def test_data_that_is_not_there_is_refused(checkpoints, tmp_path):
    with pytest.raises(AnisoscopeError) as caught:
        measure(checkpoints["gpt2"], tmp_path / "nowhere", tmp_path / "run")
    assert "nowhere" in str(caught.value)


def test_a_folder_of_something_else_is_not_written_into(texts, checkpoints, tmp_path):
    home = tmp_path / "home"
    home.mkdir()
    (home / "letter.txt").write_text("Dear reader", encoding="utf-8")
    for existing in ("resume", "replace", "refuse"):
        with pytest.raises((StoreError, UsageError)):
            measure(checkpoints["gpt2"], texts, home, existing=existing)
    assert [path.name for path in home.iterdir()] == ["letter.txt"]


def test_an_unreadable_file_among_others_is_noted_and_not_fatal(texts, checkpoints, tmp_path):
    mixed = tmp_path / "mixed"
    shutil.copytree(texts, mixed)
    (mixed / "blank.txt").write_text("  \n", encoding="utf-8")
    found = measure(checkpoints["gpt2"], mixed, tmp_path / "run")
    assert any("unreadable: " in note and "blank.txt" in note for note in found.notes)
