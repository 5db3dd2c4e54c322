"""Attention that is no softmax is watched as it is, or not at all."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import transformers
from torch import Tensor

import zoo
from anisoscope.accumulate.attention.rows import Rows
from anisoscope.capture.attention.call import AttentionCall
from anisoscope.capture.attention.capture import AttentionCapture
from anisoscope.errors import ModelError
from anisoscope.models.attention_kinds import OWN_KERNEL, apply
from capture.attention.whole import probabilities

transformers.logging.set_verbosity_error()
MASK = torch.ones(3, 12, dtype=torch.long)
MASK[1, 8:] = 0
INPUTS = {
    "input_ids": torch.randint(5, 60, (3, 12), generator=torch.Generator().manual_seed(0)),
    "attention_mask": MASK,
}


def _varied(name: str, variant: str) -> Any:
    torch.manual_seed(0)
    return apply(zoo.module(name), variant)


@pytest.mark.parametrize("name", ["bert", "llama", "gpt2"])
@pytest.mark.parametrize("variant", OWN_KERNEL)
@torch.no_grad()
def test_a_variant_computes_what_it_did_and_shows_its_own_weights(name: str, variant: str) -> None:
    module = _varied(name, variant)
    plain = module(**INPUTS, output_attentions=True)
    calls: list[AttentionCall] = []
    with AttentionCapture(module, lambda _, call: calls.append(call), query_chunk=5):
        watched = module(**INPUTS).last_hidden_state
    real = MASK.bool()
    torch.testing.assert_close(watched[real], plain.last_hidden_state[real], rtol=0, atol=1e-5)
    for call, expected in zip(calls, plain.attentions, strict=True):
        rows = real[:, None, :, None]
        torch.testing.assert_close(probabilities(call) * rows, expected * rows, rtol=0, atol=5e-6)
    again = module(**INPUTS).last_hidden_state
    torch.testing.assert_close(again, plain.last_hidden_state)


@torch.no_grad()
def test_entropy_of_rows_that_do_not_sum_to_one_is_that_of_their_shares() -> None:
    module = _varied("bert", "sigmoid").double()
    attention = module(**INPUTS, output_attentions=True).attentions[0]
    rows: list[Rows] = []

    def sink(site: str, call: AttentionCall) -> None:
        if site == "block.0":
            rows.append(Rows.like(call))
            rows[0].update(call, np.arange(3, dtype=np.uint64))

    with AttentionCapture(module, sink):
        module(**INPUTS)
    expected = np.zeros(4)
    greatest = np.zeros(4)
    for sequence, length in zip(attention.numpy(), MASK.sum(1), strict=True):
        p = sequence[:, :length, :length]
        share = p / p.sum(-1, keepdims=True)
        expected -= (share * np.log(share)).sum((1, 2))
        greatest += p.max(-1).sum(1)
    np.testing.assert_allclose(rows[0].sums["entropy"].sum(0), expected, rtol=1e-10)
    np.testing.assert_allclose(rows[0].sums["max"].sum(0), greatest, rtol=1e-10)


@torch.no_grad()
def test_queries_are_shown_as_projected_and_scored_as_transformed() -> None:
    module = _varied("bert", "query_centred")
    calls: list[AttentionCall] = []
    with AttentionCapture(module, lambda _, call: calls.append(call)):
        module(**INPUTS)
    call = calls[0]
    real = call.valid_queries[:, None, :, None]
    mean = (call.queries * real).sum(2, keepdim=True) / real.sum(2, keepdim=True)
    assert mean.norm() > 0.1
    torch.testing.assert_close((call.queries - mean) * real, call.score_queries * real, rtol=0, atol=1e-5)


def test_gradients_and_dropout_go_the_variants_own_way() -> None:
    module = _varied("llama", "gated").requires_grad_(True)

    def gradient() -> Tensor:
        module.zero_grad()
        module(**INPUTS).last_hidden_state[MASK.bool()].square().sum().backward()
        return module.layers[0].self_attn.anisoscope_attention.gating.weight.grad.clone()

    expected = gradient()
    with AttentionCapture(module, lambda *_: None):
        torch.testing.assert_close(gradient(), expected, rtol=1e-4, atol=1e-4)


def test_a_stranger_is_not_taken_for_softmax() -> None:
    def uniform(module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Any, **_: Any) -> tuple[Tensor, None]:
        return value.mean(2, keepdim=True).expand_as(query).transpose(1, 2).contiguous(), None

    transformers.AttentionInterface.register("somebodys", uniform)
    module = zoo.module("bert")
    module.config._attn_implementation = "somebodys"
    with pytest.raises(ModelError, match="in its own way"), AttentionCapture(module, lambda *_: None):
        pytest.fail("entered")
    assert module.config._attn_implementation == "somebodys"


def test_gradients_flow_as_before() -> None:
    module = zoo.module("llama").requires_grad_(True)

    def gradient() -> Tensor:
        module.zero_grad()
        module(**INPUTS).last_hidden_state[MASK.bool()].square().sum().backward()
        return module.layers[0].self_attn.q_proj.weight.grad.clone()

    expected = gradient()
    seen: list[bool] = []
    with AttentionCapture(module, lambda _, call: seen.append(call.queries.requires_grad)):
        found = gradient()
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    assert seen == [False] * zoo.LAYERS
