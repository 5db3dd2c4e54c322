"""Converted models compute what those who published them define."""

from __future__ import annotations

import struct
import sys
from pathlib import Path

import numpy as np
import torch
import transformers
from torch import Tensor
from torch.nn import functional as F

sys.path.insert(0, str(Path(__file__).parents[2] / "scripts"))

from real_weights import ctranslate2, keras
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
