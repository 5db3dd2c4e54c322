"""What a capture delivers is what plain hooks see and what the library returns; nothing is kept or left behind."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest
import torch
import transformers
from torch import nn

import zoo
from anisoscope.capture.hidden import HiddenCapture
from anisoscope.errors import ModelError, UsageError

# The class of the blocks and the path of the final norm, written down from the library's source, not from our tables.
PLAIN = {
    "bert": (["BertLayer"], {}),
    "roberta": (["RobertaLayer"], {}),
    "mpnet": (["MPNetLayer"], {}),
    "modernbert": (["ModernBertEncoderLayer"], {"final_norm": "final_norm"}),
    "canine": (["CanineLayer"], {}),
    "gpt2": (["GPT2Block"], {"final_norm": "ln_f"}),
    "opt": (["OPTDecoderLayer"], {"final_norm": "decoder.final_layer_norm"}),
    "gpt_neox": (["GPTNeoXLayer"], {"final_norm": "final_layer_norm"}),
    "llama": (["LlamaDecoderLayer"], {"final_norm": "norm"}),
    "falcon": (["FalconDecoderLayer"], {"final_norm": "ln_f"}),
    "mamba": (["MambaBlock"], {"final_norm": "norm_f"}),
    "t5": (
        ["T5Block"],
        {"encoder.final_norm": "encoder.final_layer_norm", "decoder.final_norm": "decoder.final_layer_norm"},
    ),
    "wav2vec2": (["Wav2Vec2EncoderLayer"], {}),
    "wav2vec2_stable": (["Wav2Vec2EncoderLayerStableLayerNorm"], {"final_norm": "encoder.layer_norm"}),
    "hubert": (["HubertEncoderLayer"], {}),
    "whisper": (
        ["WhisperEncoderLayer", "WhisperDecoderLayer"],
        {"encoder.final_norm": "encoder.layer_norm", "decoder.final_norm": "decoder.layer_norm"},
    ),
    "vit": (["ViTLayer"], {"final_norm": "layernorm"}),
    "deit": (["DeiTLayer"], {"final_norm": "layernorm"}),
    "beit": (["BeitLayer"], {}),
    "segformer": (["SegformerLayer"], {f"stage.{k}.norm": f"stages.{k}.layer_norm" for k in range(4)}),
    "resnet": (["ResNetBottleNeckLayer"], {}),
    "efficientnet": (["EfficientNetBlock"], {}),
    "cvt": (["CvtLayer"], {}),
    "convnext": (["ConvNextLayer"], {}),
    "mobilenet_v2": (["MobileNetV2InvertedResidual"], {}),
    "character_bert": (["BertLayer"], {}),
    "manta": (
        ["T5Block"],
        {"encoder.final_norm": "encoder.t5_encoder.final_layer_norm", "decoder.final_norm": "decoder.final_layer_norm"},
    ),
    "van": (["VanBlock"], {f"stage.{k}.norm": f"encoder.stages.{k}.normalization" for k in range(4)}),
    "clip:text": (["CLIPEncoderLayer"], {"final_norm": "final_layer_norm"}),
    "clip:vision": (["CLIPEncoderLayer"], {}),
}


def first(output: Any) -> torch.Tensor:
    return output if isinstance(output, torch.Tensor) else first(output[0])


def as_rows(state: torch.Tensor) -> torch.Tensor:
    """(B, T, d) or (B, C, H, W) to (B·T, d)."""
    return state.movedim(1, -1).flatten(0, -2) if state.dim() == 4 else state.flatten(0, -2)


def plain_states(module: nn.Module, inputs: dict[str, Any], classes: list[str], norms: dict[str, str]) -> Any:
    """The outputs of all modules of some classes in order, and those of the norms by name."""
    blocks: list[torch.Tensor] = []
    ends: dict[str, torch.Tensor] = {}
    handles = [
        part.register_forward_hook(lambda _m, _a, output: blocks.append(first(output).clone()))
        for part in module.modules()
        if type(part).__name__ in classes
    ]
    handles += [
        module.get_submodule(path).register_forward_hook(
            lambda _m, _a, output, name=name: ends.__setitem__(name, output.clone())
        )
        for name, path in norms.items()
    ]
    with torch.no_grad():
        outputs = module(**inputs, output_hidden_states=True)
    for handle in handles:
        handle.remove()
    return blocks, ends, outputs


def capture_one(capture: HiddenCapture, batch: Any) -> dict[str, torch.Tensor]:
    seen: dict[str, torch.Tensor] = {}
    capture.run(batch, lambda site, vectors, rows: seen.__setitem__(site, vectors.clone()))
    return seen


def first_batch(batches: Any) -> Any:
    return next(iter(batches))[1]


@pytest.mark.parametrize("name", PLAIN)
def test_states_are_those_of_plain_hooks(name, opened, batches_for):
    model = opened(name)
    batch = first_batch(batches_for(model, batch_tokens=1))
    seen = capture_one(HiddenCapture(model.module, whisper_window="all"), batch)
    blocks, ends, _ = plain_states(model.module, batch.inputs, *PLAIN[name])
    ours = [vectors for site, vectors in seen.items() if ".block." in f".{site}"]
    assert len(ours) == len(blocks)
    for mine, theirs in zip(ours, blocks, strict=True):
        torch.testing.assert_close(mine, as_rows(theirs), rtol=0, atol=0)
    assert {site for site in seen if site.endswith("norm")} == set(ends)
    for site, state in ends.items():
        torch.testing.assert_close(seen[site], as_rows(state), rtol=0, atol=0)


# Which site the library's last hidden state is (platform facts of transformers 5.22).
LAST = {
    **dict.fromkeys(("bert", "roberta", "mpnet", "character_bert", "wav2vec2", "wav2vec2_stable", "hubert"), "block.2"),
    **dict.fromkeys(("vit", "deit", "beit", "clip:text", "clip:vision"), "block.2"),
    **dict.fromkeys(("gpt2", "opt", "gpt_neox", "llama", "falcon", "modernbert"), "final_norm"),
}


@pytest.mark.parametrize("name", LAST)
def test_states_are_those_that_the_library_returns(name, opened, batches_for):
    model = opened(name)
    batch = first_batch(batches_for(model, batch_tokens=1))
    seen = capture_one(HiddenCapture(model.module), batch)
    _, _, outputs = plain_states(model.module, batch.inputs, *PLAIN[name])
    sites = ["embeddings", "block.0", "block.1", LAST[name]]
    assert len(outputs.hidden_states) == len(sites)
    for site, state in zip(sites, outputs.hidden_states, strict=True):
        torch.testing.assert_close(seen[site], as_rows(state))


def test_mamba_returns_its_blocks_and_its_norm_but_no_embeddings(opened, batches_for):
    model = opened("mamba")
    batch = first_batch(batches_for(model, batch_tokens=1))
    seen = capture_one(HiddenCapture(model.module), batch)
    _, _, outputs = plain_states(model.module, batch.inputs, [], {})
    for site, state in zip(["block.0", "block.1", "block.2", "final_norm"], outputs.hidden_states, strict=True):
        torch.testing.assert_close(seen[site], as_rows(state))
    embedded = model.module.embeddings(batch.inputs["input_ids"])
    torch.testing.assert_close(seen["embeddings"], as_rows(embedded))


@pytest.mark.parametrize("name", ["t5", "byt5", "whisper", "manta"])
def test_both_stacks_are_those_that_the_library_returns(name, opened, batches_for):
    model = opened(name)
    batch = first_batch(batches_for(model, batch_tokens=1))
    seen = capture_one(HiddenCapture(model.module, whisper_window="all"), batch)
    _, _, outputs = plain_states(model.module, batch.inputs, [], {})
    for side, states in (("encoder", outputs.encoder_hidden_states), ("decoder", outputs.decoder_hidden_states)):
        sites = [f"{side}.embeddings", *(f"{side}.block.{k}" for k in range(len(states) - 2)), f"{side}.final_norm"]
        for site, state in zip(sites, states, strict=True):
            torch.testing.assert_close(seen[site], as_rows(state))


def test_canine_states_are_those_that_the_library_returns(opened, batches_for):
    model = opened("canine")
    batch = first_batch(batches_for(model, batch_tokens=1))
    seen = capture_one(HiddenCapture(model.module), batch)
    _, _, outputs = plain_states(model.module, batch.inputs, [], {})
    assert len(seen) == len(outputs.hidden_states) == 3 + 5
    for vectors, state in zip(seen.values(), outputs.hidden_states, strict=True):
        torch.testing.assert_close(vectors, as_rows(state))


@pytest.mark.parametrize(
    ("name", "sites"),
    [
        ("segformer", ["stage.0.norm", "stage.1.norm", "stage.2.norm", "stage.3.norm"]),
        ("van", ["stage.0.norm", "stage.1.norm", "stage.2.norm", "stage.3.norm"]),
        ("resnet", ["embeddings", "stage.0.block.1", "stage.1.block.1", "stage.2.block.1", "stage.3.block.0"]),
        ("convnext", ["embeddings", "stage.0.block.1", "stage.1.block.1", "stage.2.block.2", "stage.3.block.1"]),
        ("efficientnet", None),
        ("mobilenet_v2", "blocks"),
    ],
)
def test_maps_are_those_that_the_library_returns(name, sites, opened, batches_for):
    model = opened(name)
    batch = first_batch(batches_for(model))
    seen = capture_one(HiddenCapture(model.module), batch)
    _, _, outputs = plain_states(model.module, batch.inputs, [], {})
    names = [site for site in seen if "block" in site] if sites == "blocks" else sites or list(seen)
    for site, state in zip(names, outputs.hidden_states, strict=True):
        torch.testing.assert_close(seen[site], as_rows(state))


def test_the_places_of_cvt_are_the_map_that_the_library_returns(opened, batches_for):
    model = opened("cvt")
    batch = first_batch(batches_for(model))
    seen = capture_one(HiddenCapture(model.module, specials="drop"), batch)
    _, _, outputs = plain_states(model.module, batch.inputs, [], {})
    for stage, state in enumerate(outputs.hidden_states):
        torch.testing.assert_close(seen[f"stage.{stage}.block.{stage}"], as_rows(state))


@pytest.mark.parametrize("name", ["gpt2", "gpt_neox", "llama", "mamba", "vit", "t5", "whisper", "opt", "falcon"])
def test_before_and_after_the_final_norm_are_told_apart(name, opened, batches_for):
    model = opened(name)
    batch = first_batch(batches_for(model, batch_tokens=1))
    seen = capture_one(HiddenCapture(model.module, whisper_window="all"), batch)
    for site, path in PLAIN[name][1].items():
        side = site.removesuffix("final_norm")
        last = [other for other in seen if other.startswith(f"{side}block.")][-1]
        with torch.no_grad():
            normed = model.module.get_submodule(path)(seen[last])
        torch.testing.assert_close(seen[site], normed)
        assert (seen[site] - seen[last]).abs().max() > 0.1


def test_albert_blocks_are_calls_of_one_module(opened, batches_for):
    sizes = zoo.sizes(hidden=32, layers=3, heads=4, embedding_size=8, vocab_size=2000)
    module = transformers.AlbertModel(transformers.AlbertConfig(**sizes)).eval()
    batch = first_batch(batches_for(opened("bert"), batch_tokens=1))
    seen = capture_one(HiddenCapture(module), batch)
    _, _, outputs = plain_states(module, batch.inputs, [], {})
    assert list(seen) == ["embeddings", "block.0", "block.1", "block.2"]
    for vectors, state in zip(seen.values(), outputs.hidden_states, strict=True):
        torch.testing.assert_close(vectors, as_rows(state))
    only = capture_one(HiddenCapture(module, sites="block.1"), batch)
    torch.testing.assert_close(only["block.1"], seen["block.1"])


@pytest.mark.parametrize("name", zoo.NAMES)
def test_the_batch_size_changes_no_vector(name, opened, batches_for, gather):
    model = opened("clip:text" if name == "clip" else name)
    together = gather(HiddenCapture(model.module), batches_for(model))
    alone = gather(HiddenCapture(model.module), batches_for(model, batch_tokens=1))
    assert together.keys() == alone.keys()
    for site, (places, vectors) in together.items():
        assert places == alone[site][0]
        assert (vectors - alone[site][1]).abs().max() <= 1e-5 * vectors.abs().max()


def test_a_head_changes_no_vector(batches_for, opened):
    batch = first_batch(batches_for(opened("gpt2")))
    plain = capture_one(HiddenCapture(zoo.module("gpt2")), batch)
    headed = capture_one(HiddenCapture(zoo.module("gpt2", head=True)), batch)
    for site, vectors in plain.items():
        torch.testing.assert_close(headed[site], vectors)


def test_flattened_maps_are_one_vector_an_image(opened, batches_for):
    model = opened("resnet")
    batch = first_batch(batches_for(model))
    places = capture_one(HiddenCapture(model.module), batch)["stage.1.block.0"]
    seen: dict[str, Any] = {}
    capture = HiddenCapture(model.module, maps="flatten")
    capture.run(batch, lambda site, vectors, rows: seen.__setitem__(site, (vectors.clone(), rows)))
    flat, rows = seen["stage.1.block.0"]
    assert flat.shape == (len(batch), places.numel() // len(batch))
    assert rows.row.tolist() == list(range(len(batch)))
    assert not rows.first.any()
    cosine = torch.nn.functional.cosine_similarity
    by_hand = places.view(len(batch), -1)  # the order of coordinates is free: it changes no cosine
    torch.testing.assert_close(cosine(flat[0], flat[1], dim=0), cosine(by_hand[0], by_hand[1], dim=0))


def test_flattening_leaves_sequences_alone(opened, batches_for):
    model = opened("vit")
    batch = first_batch(batches_for(model))
    a, b = (capture_one(HiddenCapture(model.module, maps=maps), batch) for maps in ("positions", "flatten"))
    assert all(a[site].shape == b[site].shape for site in a)


def test_half_precision_states_and_broken_numbers_are_passed_on(opened, batches_for):
    module = zoo.module("gpt2").to(torch.bfloat16)
    with torch.no_grad():
        module.h[1].mlp.c_proj.bias[0] = float("nan")
    seen = capture_one(HiddenCapture(module), first_batch(batches_for(opened("gpt2"))))
    assert {vectors.dtype for vectors in seen.values()} == {torch.bfloat16}
    assert seen["block.0"].isfinite().all()
    assert seen["block.1"][:, 0].isnan().all()


def test_pixels_take_the_precision_of_the_model(opened, batches_for):
    batch = first_batch(batches_for(opened("vit")))
    seen = capture_one(HiddenCapture(zoo.module("vit").to(torch.bfloat16)), batch)
    assert seen["final_norm"].dtype == torch.bfloat16


def hooks_on(module: nn.Module) -> int:
    return sum(len(part._forward_hooks) + len(part._forward_pre_hooks) for part in module.modules())


def test_hooks_come_off_after_a_run_and_after_an_exception(opened, batches_for):
    model = opened("gpt2")
    capture, batch = HiddenCapture(model.module), first_batch(batches_for(model))
    before = hooks_on(model.module)
    capture.run(batch, lambda *_: None)
    assert hooks_on(model.module) == before

    def failing(site: str, *_: Any) -> None:
        assert hooks_on(model.module) > before
        if site == "block.1":
            raise RuntimeError("the sink is full")

    with pytest.raises(RuntimeError, match="the sink is full"):
        capture.run(batch, failing)
    assert hooks_on(model.module) == before


def test_no_state_outlives_its_batch(opened, batches_for):
    model = opened("gpt2")
    seen: list[weakref.ref[torch.Tensor]] = []
    watch = [
        block.register_forward_hook(lambda _m, _a, output: seen.append(weakref.ref(first(output))))
        for block in model.module.h
    ]
    capture = HiddenCapture(model.module)
    alive: list[int] = []

    def sink(site: str, vectors: torch.Tensor, rows: Any) -> None:
        alive.append(sum(ref() is not None for ref in seen))
        seen.append(weakref.ref(vectors))

    capture.run(first_batch(batches_for(model)), sink)
    for handle in watch:
        handle.remove()
    gc.collect()
    assert len(seen) == 3 + 5
    assert all(ref() is None for ref in seen)
    assert max(alive) <= 3  # at no time more than the states that the forward pass itself holds


def test_a_second_forward_pass_is_refused(opened, batches_for):
    model = opened("gpt2")
    capture, batch = HiddenCapture(model.module), first_batch(batches_for(model))
    with capture.attached(batch, lambda *_: None):
        model.module(**batch.inputs)
        with pytest.raises(ModelError, match="one forward pass"):
            model.module(**batch.inputs)


def test_a_pass_that_misses_a_site_is_refused(opened, batches_for):
    model = opened("t5")
    capture, batch = HiddenCapture(model.module), first_batch(batches_for(model))
    with pytest.raises(ModelError, match=r"decoder\.block\.0"), capture.attached(batch, lambda *_: None):
        model.module.encoder(batch.inputs["input_ids"])


@pytest.mark.parametrize("option", [{"maps": "pooled"}, {"specials": "only"}, {"whisper_window": "half"}])
def test_unknown_choices_are_refused(option, opened):
    with pytest.raises(UsageError, match="unknown choice"):
        HiddenCapture(opened("gpt2").module, **option)
