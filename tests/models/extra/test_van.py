"""VAN gives the numbers of the implementation that the library dropped, opens what was published, starts as it did."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from torch import Tensor, nn
from transformers import AutoConfig, AutoImageProcessor, AutoModel, AutoModelForImageClassification

from anisoscope.models.extra.van import VanBlock, VanConfig, VanForImageClassification, VanImageProcessor, VanModel
from fixtures import recorded

TOLERANCE = 1e-5
SIZES = {
    "tiny": ((32, 64, 160, 256), (3, 3, 5, 2)),
    "small": ((64, 128, 320, 512), (2, 2, 4, 2)),
    "base": ((64, 128, 320, 512), (3, 3, 12, 3)),
    "large": ((64, 128, 320, 512), (3, 5, 27, 3)),
}
CONFIG = recorded.facts("van_tiny")["config"]
PREPROCESSOR = {
    "feature_extractor_type": "ConvNextFeatureExtractor",
    "size": 224,
    "crop_pct": 0.875,
    "resample": 3,
    "do_resize": True,
    "do_normalize": True,
    "image_mean": [0.485, 0.456, 0.406],
    "image_std": [0.229, 0.224, 0.225],
}


def config(**options: Any) -> VanConfig:
    return VanConfig(**options)


@pytest.fixture
def model() -> VanForImageClassification:
    made = VanForImageClassification(config(**CONFIG)).eval()
    made.load_state_dict(recorded.tensors("van_tiny_state"))
    return made


@pytest.fixture(scope="module")
def io() -> dict[str, Tensor]:
    return recorded.tensors("van_tiny_io")


@torch.no_grad()
def outputs(model: VanForImageClassification, pixels: Tensor) -> dict[str, Tensor]:
    """All that was recorded of a case: stages, pooled, logits, and each embedding and block."""
    seen: dict[str, Tensor] = {}
    for path, part in model.named_modules():
        if path.endswith("embeddings") or isinstance(part, VanBlock):
            part.register_forward_hook(lambda _, __, output, path=path: seen.update({f"module.{path}": output}))
    headed = model(pixels, output_hidden_states=True)
    seen |= {f"hidden_states.{index}": stage for index, stage in enumerate(headed.hidden_states)}
    return seen | {"logits": headed.logits, "pooler_output": model.van(pixels).pooler_output}


@pytest.mark.parametrize("name", ["a", "b"])
def test_every_recorded_tensor_is_reproduced(model: VanForImageClassification, io: dict[str, Tensor], name: str):
    assert recorded.furthest(outputs(model, io[f"{name}.pixel_values"]), recorded.outputs_of(io, name)) < TOLERANCE


def _residual_from_x(block: VanBlock, x: Tensor) -> Tensor:
    y = block.pre_normomalization(x)
    x = x + block.attention_scaling(block.attention(y) - y + x)
    return x + block.mlp_scaling(block.mlp(block.post_normalization(x)))


def _no_residual(block: VanBlock, x: Tensor) -> Tensor:
    y = block.pre_normomalization(x)
    x = x + block.attention_scaling(block.attention(y) - y)
    return x + block.mlp_scaling(block.mlp(block.post_normalization(x)))


def _set_eps(model: nn.Module, kind: type[nn.Module], eps: float) -> None:
    for part in model.modules():
        if isinstance(part, kind):
            setattr(part, "eps", eps)  # noqa: B010 - either norm has it, their common class has not


MISTAKES = {
    "inner residual from x": (lambda model, patch: patch.setattr(VanBlock, "forward", _residual_from_x), 4.9),
    "no inner residual": (lambda model, patch: patch.setattr(VanBlock, "forward", _no_residual), 1.3e1),
    "BatchNorm eps 1e-3": (lambda model, patch: _set_eps(model, nn.BatchNorm2d, 1e-3), 2.4e-2),
    "LayerNorm eps 1e-5": (lambda model, patch: _set_eps(model, nn.LayerNorm, 1e-5), 8.3e-5),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_the_recorded_numbers_would_show_a_mistake(
    model: VanForImageClassification, io: dict[str, Tensor], mistake: str, monkeypatch: pytest.MonkeyPatch
):
    make, deviation = MISTAKES[mistake]
    make(model, monkeypatch)
    found = max(
        recorded.furthest(outputs(model, io[f"{name}.pixel_values"]), recorded.outputs_of(io, name)) for name in "ab"
    )
    assert found == pytest.approx(deviation, rel=0.05)


@torch.no_grad()
def test_hidden_states_are_the_four_stages_and_only_on_request(model: VanForImageClassification, io: dict[str, Tensor]):
    body = model.van(io["a.pixel_values"], output_hidden_states=True)
    assert [tuple(stage.shape) for stage in body.hidden_states] == [
        (2, 8, 16, 16),
        (2, 12, 8, 8),
        (2, 16, 4, 4),
        (2, 24, 2, 2),
    ]
    assert torch.equal(body.hidden_states[-1], body.last_hidden_state)
    assert model.van(io["a.pixel_values"]).hidden_states is None
    assert isinstance(model.van(io["a.pixel_values"], return_dict=False), tuple)


@torch.no_grad()
def test_a_batch_equals_its_pictures_one_by_one(model: VanForImageClassification):
    pixels = torch.randn(5, 3, 50, 70, generator=torch.Generator().manual_seed(0))
    together = model(pixels, output_hidden_states=True).hidden_states
    alone = [model(picture[None], output_hidden_states=True).hidden_states for picture in pixels]
    for stage, parts in zip(together, zip(*alone, strict=True), strict=True):
        torch.testing.assert_close(stage, torch.cat(parts), rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("size", SIZES)
def test_published_sizes_have_the_published_tensors(size: str):
    widths, depths = SIZES[size]
    made = recorded.empty(VanForImageClassification, config(hidden_sizes=widths, depths=depths, num_labels=1000))
    expected = recorded.facts(f"published_shapes_van-{size}")
    assert recorded.shapes(made) == expected["tensors"]
    assert made.num_parameters() == expected["n_parameters"]


@pytest.mark.parametrize("pickled", [True, False])
def test_the_published_layout_opens(tmp_path: Path, io: dict[str, Tensor], pickled: bool):
    state = recorded.tensors("van_tiny_state")
    written = {"architectures": ["VanForImageClassification"], "model_type": "van", "image_size": 64, **CONFIG}
    folder = recorded.publish(tmp_path, written, state, pickled=pickled)
    body, report = AutoModel.from_pretrained(folder, output_loading_info=True)
    headed = AutoModelForImageClassification.from_pretrained(folder)
    assert isinstance(body, VanModel)
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    with torch.no_grad():
        pooled, logits = body(io["a.pixel_values"]).pooler_output, headed(io["a.pixel_values"]).logits
    torch.testing.assert_close(pooled, io["a.pooler_output"], rtol=0, atol=TOLERANCE)
    torch.testing.assert_close(logits, io["a.logits"], rtol=0, atol=TOLERANCE)


def test_what_is_saved_opens_again(tmp_path: Path, model: VanForImageClassification):
    model.save_pretrained(tmp_path)
    written = AutoConfig.from_pretrained(tmp_path)
    again = AutoModelForImageClassification.from_pretrained(tmp_path)
    assert isinstance(written, VanConfig)
    assert (written.depths, written.num_labels) == ([2, 1, 3, 1], 5)
    assert recorded.furthest(dict(again.state_dict()), dict(model.state_dict())) == 0


def test_pictures_are_prepared_as_published(tmp_path: Path):
    kept = recorded.tensors("van_preprocess")
    picture = Image.fromarray(kept["image_hwc_uint8"].numpy())
    ours = VanImageProcessor(size={"shortest_edge": 32})(picture, return_tensors="pt")["pixel_values"]
    torch.testing.assert_close(ours, kept["pixel_values"], rtol=0, atol=1e-6)


def test_a_published_preprocessor_file_opens(tmp_path: Path):
    folder = recorded.publish(tmp_path, {"model_type": "van", **CONFIG}, {})
    (folder / "preprocessor_config.json").write_text(json.dumps(PREPROCESSOR), encoding="utf-8")
    opened = AutoImageProcessor.from_pretrained(folder, backend="pil")
    picture = Image.effect_mandelbrot((300, 400), (-2, -1.5, 1, 1.5), 50).convert("RGB")
    published = opened(picture, return_tensors="pt")["pixel_values"]
    assert published.shape == (1, 3, 224, 224)
    assert torch.equal(published, VanImageProcessor()(picture, return_tensors="pt")["pixel_values"])


def test_a_saved_processor_is_found_again(tmp_path: Path):
    VanConfig(**CONFIG).save_pretrained(tmp_path)
    VanImageProcessor(size={"shortest_edge": 64}).save_pretrained(tmp_path)
    again = AutoImageProcessor.from_pretrained(tmp_path, backend="pil")
    assert isinstance(again, VanImageProcessor)
    assert again.size["shortest_edge"] == 64


def test_a_fresh_model_starts_as_specified():
    torch.manual_seed(0)
    made = VanForImageClassification(config(hidden_sizes=(32, 64, 160, 256), depths=(1, 1, 1, 1), num_labels=1000))
    state = made.state_dict()
    stage = "van.encoder.stages.3"
    dense, depthwise = state[f"{stage}.layers.0.mlp.in_dense.weight"], state[f"{stage}.layers.0.mlp.depth_wise.weight"]
    assert float(dense.std()) == pytest.approx(math.sqrt(2 / 1024), rel=0.02)  # 1×1, 1024 channels out
    assert float(depthwise.std()) == pytest.approx(math.sqrt(2 / 9), rel=0.05)  # 3×3, one channel a group
    assert float(state[f"{stage}.embeddings.convolution.weight"].std()) == pytest.approx(
        math.sqrt(2 / (9 * 256)), rel=0.02
    )
    assert float(state["classifier.weight"].std()) == pytest.approx(0.02, rel=0.02)
    assert all(not tensor.any() for name, tensor in state.items() if name.endswith(".bias"))
    assert all((tensor == 1e-2).all() for name, tensor in state.items() if name.endswith("scaling.weight"))
    norms = [tensor for name, tensor in state.items() if name.endswith(("malization.weight", "running_var"))]
    assert all((tensor == 1).all() for tensor in norms)


def test_paths_are_dropped_more_often_in_deeper_blocks():
    made = VanModel(config(**{**CONFIG, "drop_path_rate": 0.6}))
    rates = [part.drop_path.drop_prob for part in made.modules() if isinstance(part, VanBlock)]
    assert rates == pytest.approx([0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6])


@torch.no_grad()
def test_the_loss_is_the_cross_entropy_of_the_labels(model: VanForImageClassification, io: dict[str, Tensor]):
    loss = model(io["a.pixel_values"], labels=torch.tensor([3, 1])).loss
    chosen = io["a.logits"].log_softmax(-1)[[0, 1], [3, 1]]
    assert float(loss) == pytest.approx(-float(chosen.mean()), rel=1e-5)
