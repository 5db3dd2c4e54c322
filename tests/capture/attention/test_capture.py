"""Queries, keys and probabilities against the library's own, for every architecture of the zoo that has attention."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn

import zoo
from anisoscope.capture.attention.call import AttentionCall
from anisoscope.capture.attention.capture import NAME, AttentionCapture
from anisoscope.errors import ModelError
from capture.attention.whole import probabilities

transformers.logging.set_verbosity_error()
WITHOUT = ("falcon", "mamba", "resnet", "efficientnet", "convnext", "mobilenet_v2", "van")
TOWERS = ("clip.text_model", "clip.vision_model")
NAMES = tuple(name for name in zoo.NAMES if name not in (*WITHOUT, "clip")) + TOWERS
Named = tuple[str, AttentionCall]
ROTARY = ("modernbert", "gpt_neox", "llama")


def _module(name: str) -> Any:
    whole, _, tower = name.partition(".")
    return getattr(zoo.module(whole), tower) if tower else zoo.module(whole)


def _padded(batch: int, length: int) -> Tensor:
    mask = torch.ones(batch, length, dtype=torch.long)
    mask[1, length - length // 3 :] = 0
    return mask


def _inputs(name: str) -> dict[str, Tensor]:
    """Three texts, two clips or two pictures; one text and one clip are padded."""
    generator = torch.Generator().manual_seed(1)
    whole, _, tower = name.partition(".")
    kind = {"text_model": "text", "vision_model": "vision"}.get(tower) or zoo.modality(whole)
    if kind == "vision":
        return {"pixel_values": torch.randn(2, 3, zoo.image_size(whole), zoo.image_size(whole), generator=generator)}
    if name == "whisper":
        ids = torch.randint(5, 40, (2, 9), generator=generator)
        return {"input_features": torch.randn(2, 16, 200, generator=generator), "decoder_input_ids": ids}
    if kind == "speech":
        mask = torch.ones(2, 4000, dtype=torch.long)
        mask[1, 3000:] = 0
        return {"input_values": torch.randn(2, 4000, generator=generator), "attention_mask": mask}
    if name == "character_bert":
        return dict(zoo.processor(name)(["One two three four.", "Five six"], padding=True, return_tensors="pt"))
    length = 300 if name == "canine" else 20
    inputs = {"input_ids": torch.randint(5, 60, (3, length), generator=generator)}
    inputs["attention_mask"] = _padded(3, length)
    if name in ("t5", "byt5", "manta"):
        inputs["decoder_input_ids"] = torch.randint(5, 60, (3, 9), generator=generator)
        inputs["decoder_attention_mask"] = _padded(3, 9)
    return inputs


def _capture(
    module: nn.Module, inputs: dict[str, Tensor], **options: Any
) -> tuple[Any, list[tuple[str, AttentionCall]]]:
    calls: list[tuple[str, AttentionCall]] = []
    with torch.no_grad(), AttentionCapture(module, lambda site, call: calls.append((site, call)), **options):
        output = module(**inputs)
    return output, calls


def _state(output: Any) -> Tensor:
    return output.logits if "logits" in output else output.last_hidden_state


@pytest.mark.parametrize("name", NAMES)
def test_outputs_stay_what_they_were_and_so_does_the_implementation(name: str) -> None:
    module, inputs = _module(name), _inputs(name)
    before = {id(part): part.config._attn_implementation for part in module.modules() if hasattr(part, "config")}
    with torch.no_grad():
        expected = _state(module(**inputs))

    def look(_: str, call: AttentionCall) -> None:
        if call.scaling is not None:
            next(iter(call.chunks()))  # a sink that stops half way must not cut the output

    with torch.no_grad(), AttentionCapture(module, look):
        found = _state(module(**inputs))
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)
    after = {id(part): part.config._attn_implementation for part in module.modules() if hasattr(part, "config")}
    assert after == before
    assert NAME not in after.values()


def _library_probabilities(name: str, module: Any, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
    """What the library gives for `output_attentions=True` with eager attention, by site."""
    module.set_attn_implementation("eager")
    with torch.no_grad():
        output = module(**inputs, output_attentions=True)
    if name in ("t5", "byt5", "whisper"):
        named = {"encoder.block.{}": output.encoder_attentions, "decoder.block.{}": output.decoder_attentions}
        named["decoder.block.{}.cross"] = output.cross_attentions
        return {site.format(k): p for site, layers in named.items() for k, p in enumerate(layers)}
    if name == "segformer":
        sites = ["stage.0.block.0", "stage.0.block.1", "stage.1.block.0", "stage.1.block.1"]
        return dict(zip([*sites, "stage.2.block.0", "stage.3.block.0"], output.attentions, strict=True))
    if name == "canine":  # of the local character layer the library gives the first window only
        sites = ["char.block.0", *(f"block.{k}" for k in range(zoo.LAYERS)), "final.block.0"]
        return dict(zip(sites, output.attentions, strict=True))
    return {f"block.{k}": p for k, p in enumerate(output.attentions)}


@pytest.mark.parametrize("name", [name for name in NAMES if name not in ("cvt", "manta")])  # which give no attentions
def test_probabilities_equal_the_librarys_eager_attention(name: str) -> None:
    module, inputs = _module(name), _inputs(name)
    expected = _library_probabilities(name, module, inputs)
    _, calls = _capture(module, inputs, query_chunk=7)
    found: dict[str, tuple[Tensor, Tensor]] = {}
    for site, call in calls:
        found.setdefault(site, (probabilities(call), call.valid_queries))
    assert list(found) == [site for site in found if site in expected]
    assert set(found) == set(expected)
    for site, (weights, valid) in found.items():
        rows = valid[:, None, :, None]  # rows of padding are nobody's
        torch.testing.assert_close(weights * rows, expected[site] * rows, rtol=0, atol=3e-6)  # float32


def test_cvt_is_rebuilt_with_its_own_scale() -> None:
    """CvT gives no attentions: compare with what its softmax returns."""
    module, inputs = zoo.module("cvt"), _inputs("cvt")
    seen: list[Tensor] = []
    softmax = torch.nn.functional.softmax

    class Tap(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            result = function(*args, **(kwargs or {}))
            if function is softmax:
                seen.append(result)
            return result

    with torch.no_grad(), Tap():
        module(**inputs)
    _, calls = _capture(module, inputs)
    assert [site for site, _ in calls] == ["stage.0.block.0", *(f"stage.1.block.{k}" for k in range(2))] + [
        f"stage.2.block.{k}" for k in range(3)
    ]
    for expected, (_, call) in zip(seen, calls, strict=True):
        torch.testing.assert_close(probabilities(call), expected, rtol=0, atol=1e-6)
    assert calls[-1][1].scaling == pytest.approx(32**-0.5)  # embed_dim, not d_head = 8


# -- queries and keys against hooks on the projections -----------------------------------------------------------------


def _halves(output: Tensor) -> tuple[Tensor, Tensor]:
    query, key, _ = output.split(output.shape[-1] // 3, -1)
    return query, key


def _heads(x: Tensor, d: int) -> Tensor:
    return x.unflatten(-1, (-1, d)).transpose(1, 2)


def _neox(output: Tensor) -> tuple[Tensor, Tensor]:
    query, key, _ = output.unflatten(-1, (zoo.HEADS, -1)).transpose(1, 2).chunk(3, -1)
    return query.transpose(1, 2).flatten(2), key.transpose(1, 2).flatten(2)


FUSED: dict[str, tuple[str, Callable[[Tensor], tuple[Tensor, Tensor]]]] = {
    "gpt2": ("c_attn", _halves),
    "modernbert": ("Wqkv", _halves),
    "gpt_neox": ("query_key_value", _neox),
}
PAIRS = (("query", "key"), ("q_proj", "k_proj"), ("q", "k"), ("projection_query", "projection_key"))


def _projections(name: str, module: nn.Module, inputs: dict[str, Tensor]) -> list[tuple[Tensor, Tensor]]:
    """What the query and key projections return, layer by layer."""
    queries: list[Tensor] = []
    keys: list[Tensor] = []
    handles: list[Any] = []
    fused = FUSED.get(name)
    for path, part in module.named_modules():
        leaf = path.rsplit(".", 1)[-1]
        if fused and leaf == fused[0]:
            handles.append(part.register_forward_hook(lambda _, __, out: queries.append(fused[1](out.clone())[0])))
            handles.append(part.register_forward_hook(lambda _, __, out: keys.append(fused[1](out.clone())[1])))
        elif not fused and isinstance(part, nn.Linear) and any(leaf in pair for pair in PAIRS):
            store = queries if any(leaf == query for query, _ in PAIRS) else keys
            handles.append(part.register_forward_hook(lambda _, __, out, store=store: store.append(out.clone())))
    with torch.no_grad():
        module(**inputs)
    for handle in handles:
        handle.remove()
    return list(zip(queries, keys, strict=True))


@pytest.mark.parametrize("name", NAMES)
def test_queries_and_keys_equal_what_the_projections_return(name: str) -> None:
    module, inputs = _module(name), _inputs(name)
    expected = _projections(name, module, inputs)
    _, calls = _capture(module, inputs, before_rotary=True)
    assert len(calls) == len(expected) > 0
    for (query, key), (_, call) in zip(expected, calls, strict=True):
        d = call.queries.shape[-1]
        if len(query) != len(call.queries):  # MANTa's Longformer has time before batch
            query, key = query.transpose(0, 1), key.transpose(0, 1)
        torch.testing.assert_close(call.queries, _heads(query, d), rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(call.keys, _heads(key, d), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ROTARY)
def test_rotation_moves_vectors_and_keeps_their_length(name: str) -> None:
    module, inputs = _module(name), _inputs(name)
    _, after = _capture(module, inputs)
    _, before = _capture(module, inputs, before_rotary=True)
    for (_, turned), (_, plain) in zip(after, before, strict=True):
        assert (turned.keys - plain.keys).abs().max() > 0.01
        torch.testing.assert_close(turned.keys.norm(dim=-1), plain.keys.norm(dim=-1), rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(probabilities(turned), probabilities(plain))
        assert plain.score_keys.equal(turned.score_keys)


def test_scales_are_the_models_own() -> None:
    scales = {
        name: _capture(_module(name), _inputs(name))[1][0][1].scaling for name in ("bert", "opt", "whisper", "t5")
    }
    assert scales == {"bert": 8**-0.5, "opt": 8**-0.5, "whisper": 8**-0.5, "t5": 1.0}


def test_content_is_apart_from_position_bias() -> None:
    for name in ("t5", "beit", "mpnet"):
        _, calls = _capture(_module(name), _inputs(name))
        call = calls[1][1]
        assert call.position_bias is not None
        assert call.scaling is not None
        chunk = next(iter(call.chunks()))
        scores = call.score_queries @ call.score_keys.transpose(-1, -2) * call.scaling
        torch.testing.assert_close(chunk.content, scores[chunk.batch, :, chunk.rows], rtol=1e-5, atol=1e-5)
        biased = chunk.content + call.position_bias[..., chunk.rows, : chunk.content.shape[-1]]
        assert (biased - chunk.content).abs().max() > 0.01
        if chunk.visible is None:
            torch.testing.assert_close(chunk.probabilities, biased.softmax(-1))
    assert _capture(_module("bert"), _inputs("bert"))[1][0][1].position_bias is None
    cross = {site: call.position_bias for site, call in _capture(_module("t5"), _inputs("t5"))[1]}
    assert cross["decoder.block.0.cross"] is None


def test_grouped_queries_read_their_key_head() -> None:
    _, calls = _capture(_module("llama"), _inputs("llama"))
    call = calls[0][1]
    assert (call.queries.shape[1], call.keys.shape[1], call.group) == (4, 2, 2)
    chunk = next(iter(call.chunks()))
    assert call.scaling is not None
    for head in range(4):
        expected = call.queries[:, head] @ call.keys[:, head // 2].transpose(-1, -2) * call.scaling
        torch.testing.assert_close(chunk.content[:, head], expected[:, chunk.rows], rtol=1e-5, atol=1e-5)


# -- what is visible, what is padding ----------------------------------------------------------------------------------


def test_causal_rows_see_the_past_and_padding_is_left_out() -> None:
    inputs = _inputs("gpt2")
    _, calls = _capture(_module("gpt2"), inputs)
    real = inputs["attention_mask"].bool()
    expected = torch.ones(20, 20, dtype=torch.bool).tril() & real[:, None]
    for _, call in calls:
        assert call.visible is not None
        assert call.visible.equal(expected)
        assert call.valid_queries.equal(real)
        assert call.valid_keys.equal(real)


def test_encoder_rows_see_all_that_is_not_padding() -> None:
    inputs = _inputs("bert")
    _, calls = _capture(_module("bert"), inputs)
    real = inputs["attention_mask"].bool()
    assert all(call.visible is not None and call.visible.equal(real[:, None]) for _, call in calls)
    inputs["attention_mask"][:] = 1
    assert all(call.visible is None for _, call in _capture(_module("bert"), inputs)[1])


def test_cross_attention_has_the_decoders_queries_and_the_encoders_keys() -> None:
    inputs = _inputs("t5")
    _, calls = _capture(_module("t5"), inputs)
    cross = [(site, call) for site, call in calls if call.kind == "cross"]
    assert [site for site, _ in cross] == ["decoder.block.0.cross", "decoder.block.1.cross"]
    for _, call in cross:
        assert call.valid_queries.equal(inputs["decoder_attention_mask"].bool())
        assert call.valid_keys.equal(inputs["attention_mask"].bool())


def test_canine_attends_in_windows() -> None:
    inputs = _inputs("canine")
    _, calls = _capture(_module("canine"), inputs)
    local = [call for site, call in calls if site == "char.block.0"]
    assert [(call.start, call.queries.shape[2], call.windowed) for call in local] == [
        (0, 128, True),
        (128, 128, True),
        (256, 44, True),
    ]
    assert torch.cat([call.valid_queries for call in local], 1).equal(inputs["attention_mask"].bool())
    assert not any(call.windowed for site, call in calls if site != "char.block.0")


def test_tiles_do_not_change_anything() -> None:
    module, inputs = _module("llama"), _inputs("llama")
    _, whole = _capture(module, inputs, query_chunk=1000)
    _, cut = _capture(module, inputs, query_chunk=3)
    for (_, one), (_, other) in zip(whole, cut, strict=True):
        assert max(chunk.content.shape[2] for chunk in other.chunks()) == 3
        torch.testing.assert_close(probabilities(one), probabilities(other))


def test_every_thread_has_sequences_of_its_own() -> None:
    module, inputs = _module("llama"), _inputs("llama")
    before, blocks, found = torch.get_num_threads(), {}, {}
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            (_, call), *_ = _capture(module, inputs)[1]
            blocks[threads] = [block.stop - block.start for block in call.blocks()]
            found[threads] = probabilities(call)
    finally:
        torch.set_num_threads(before)
    assert blocks == {1: [3], 2: [2, 2], 3: [1, 1, 1]}  # a slice may end behind the last sequence
    assert all(found[threads].equal(found[1]) for threads in (2, 3))


# -- coming and going --------------------------------------------------------------------------------------------------


def _implementations(module: nn.Module) -> list[str]:
    return [part.config._attn_implementation for part in module.modules() if hasattr(part, "config")]


def test_everything_is_restored_after_an_exception() -> None:
    module, inputs = _module("t5"), _inputs("t5")
    module.encoder.set_attn_implementation("eager")  # the parts of a model may differ
    before = _implementations(module)
    assert len(set(before)) == 2
    hooks = sum(len(part._forward_hooks) + len(part._forward_pre_hooks) for part in module.modules())

    def fail(_: str, __: AttentionCall) -> None:
        raise RuntimeError("no more")

    with pytest.raises(RuntimeError, match="no more"), AttentionCapture(module, fail, before_rotary=True):
        module(**inputs)
    assert _implementations(module) == before
    assert sum(len(part._forward_hooks) + len(part._forward_pre_hooks) for part in module.modules()) == hooks
    module(**inputs)


@pytest.mark.parametrize("name", ["bert", "canine"])  # through the interface, and with hooks
def test_a_capture_within_a_capture_takes_over_until_it_ends(name: str) -> None:
    module, inputs = _module(name), _inputs(name)
    before = _implementations(module)
    outer: list[str] = []
    inner: list[str] = []
    with torch.no_grad(), AttentionCapture(module, lambda site, _: outer.append(site)):
        with AttentionCapture(module, lambda site, _: inner.append(site)):
            module(**inputs)
        assert outer == []
        module(**inputs)
    assert outer == inner != []
    assert _implementations(module) == before


def test_two_models_are_captured_at_once() -> None:
    one, other = _module("bert"), _module("gpt2")
    sites: list[tuple[str, str]] = []
    with (
        torch.no_grad(),
        AttentionCapture(one, lambda site, _: sites.append(("bert", site))),
        AttentionCapture(other, lambda site, _: sites.append(("gpt2", site))),
    ):
        other(**_inputs("gpt2"))
        one(**_inputs("bert"))
    assert sites == [(name, f"block.{k}") for name in ("gpt2", "bert") for k in range(zoo.LAYERS)]


@pytest.mark.parametrize("name", WITHOUT)
def test_models_without_queries_and_keys_are_refused(name: str) -> None:
    module = _module(name)
    before = _implementations(module)
    with pytest.raises(ModelError, match="no queries and keys here"), AttentionCapture(module, lambda *_: None):
        pytest.fail("entered")
    assert _implementations(module) == before


def test_a_pass_without_attention_is_noticed() -> None:
    """A file that speaks of the interface is no proof: what counts is that a layer calls it."""
    module = _module("bert")
    for layer in module.encoder.layer:
        layer.forward = lambda hidden_states, *_, **__: hidden_states
    with pytest.raises(ModelError, match="no queries and keys here"), AttentionCapture(module, lambda *_: None):
        module(**_inputs("bert"))
