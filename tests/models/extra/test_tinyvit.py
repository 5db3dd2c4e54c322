"""TinyViT computes what its formulas say, written out place by place, and opens like a model of the library."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import AutoModel

from anisoscope.capture.families import known_stacks
from anisoscope.models.extra.register import register
from anisoscope.models.extra.tinyvit import TinyVitAttention, TinyVitBlock, TinyVitConfig, TinyVitModel

SMALL = TinyVitConfig(
    image_size=40,
    hidden_sizes=[8, 12, 16],
    depths=[1, 1, 2],
    num_heads=[2, 3, 4],
    window_sizes=[2, 3, 2],
    merge_strides=[2, 1],
)


def attend(attention: TinyVitAttention, places: Tensor) -> Tensor:
    """One window: every pair of places by itself, its bias looked up by how far apart they are."""
    side, heads = attention.window, attention.heads
    packed = F.linear(attention.norm(places), attention.qkv.weight, attention.qkv.bias)
    width = packed.shape[-1] // heads
    out = torch.zeros_like(places)
    for head in range(heads):
        query, key, value = packed[:, head * width : (head + 1) * width].split(width // 3, dim=-1)
        scores = query @ key.T / (width // 3) ** 0.5
        for a in range(side * side):
            for b in range(side * side):
                rows, columns = abs(a // side - b // side), abs(a % side - b % side)
                scores[a, b] += attention.attention_biases[head, rows * side + columns]
        out[:, head * width // 3 : (head + 1) * width // 3] = scores.softmax(-1) @ value
    return attention.proj(out)


def test_a_block_is_attention_in_windows_then_a_convolution_then_an_mlp() -> None:
    torch.manual_seed(0)
    block = TinyVitBlock(SMALL, 1).double().eval()
    torch.nn.init.normal_(block.attn.attention_biases)
    x = torch.randn(1, 12, 5, 4, dtype=torch.float64)  # 5 × 4 places in windows of 3 × 3: the last ones are filled up
    filled = torch.zeros(12, 6, 6, dtype=torch.float64)
    filled[:, :5, :4] = x[0]
    mixed = torch.zeros_like(filled)
    for row in (0, 3):
        for column in (0, 3):
            window = filled[:, row : row + 3, column : column + 3].flatten(1).T
            mixed[:, row : row + 3, column : column + 3] = attend(block.attn, window).T.reshape(12, 3, 3)
    state = block.local_conv(x + mixed[None, :, :5, :4])
    expected = state + block.mlp(state.movedim(1, -1)).movedim(-1, 1)
    torch.testing.assert_close(block(x), expected, rtol=0, atol=1e-12)


def test_it_is_saved_and_opened_by_name_and_its_stages_are_known(tmp_path: Path) -> None:
    register()
    model = TinyVitModel(SMALL).eval()
    model.save_pretrained(tmp_path)
    again = AutoModel.from_pretrained(tmp_path).eval()
    pixels = torch.randn(1, 3, 40, 40)
    output = again(pixels, output_hidden_states=True)
    torch.testing.assert_close(output.last_hidden_state, model(pixels).last_hidden_state)
    assert [tuple(state.shape[1:]) for state in output.hidden_states] == [(12, 5, 5), (16, 5, 5), (16, 5, 5)]
    assert [stack.name for stack in known_stacks(again.config) or ()] == ["stage.0.", "stage.1.", "stage.2."]
