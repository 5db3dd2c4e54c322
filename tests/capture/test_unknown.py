"""Architectures in no table: a guess that holds is used, one that does not gives way to the model's own states."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn

import zoo
from anisoscope.capture.hidden import HiddenCapture
from anisoscope.capture.sites import find_sites
from anisoscope.errors import ModelError
from anisoscope.models.batches.plan import Batch


def text_batch(*lengths: int) -> Batch:
    valid = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
    ids = torch.randint(3, 20, valid.shape, generator=torch.Generator().manual_seed(0))
    inputs = {"input_ids": ids, "attention_mask": valid.long()}
    keys = [str(k) for k in range(len(lengths))]
    return Batch(inputs, keys, [0] * len(lengths), valid, torch.zeros_like(valid))


def run(capture: HiddenCapture, batch: Batch) -> dict[str, Tensor]:
    seen: dict[str, Tensor] = {}
    capture.run(batch, lambda site, vectors, rows: seen.__setitem__(site, vectors.clone()))
    return seen


SMALL = zoo.sizes(vocab_size=20)


@pytest.mark.parametrize(
    ("config", "last"),
    [
        (transformers.MptConfig(d_model=16, n_heads=2, n_layers=2, vocab_size=20), "final_norm"),
        (transformers.DebertaV2Config(**SMALL), "block.1"),
        (transformers.Gemma3TextConfig(**SMALL, num_key_value_heads=1, head_dim=8), "final_norm"),
        (transformers.FalconMambaConfig(**SMALL, state_size=4), "final_norm"),
        (transformers.NystromformerConfig(**SMALL, segment_means_seq_len=8, num_landmarks=2), "block.1"),
    ],
    ids=lambda value: getattr(value, "model_type", ""),
)
def test_a_guess_that_holds_is_used_and_said(config, last):
    module = transformers.AutoModel.from_config(config).eval()
    batch = text_batch(8, 8)
    capture = HiddenCapture(module)
    seen = run(capture, batch)
    assert "equal to the model's hidden_states" in capture.notes[0]
    assert list(seen) == ["embeddings", "block.0", "block.1", *(["final_norm"] if last == "final_norm" else [])]
    returned = module(**batch.inputs, output_hidden_states=True).hidden_states[-1]
    torch.testing.assert_close(seen[last], returned.flatten(0, 1))


def test_an_unknown_encoder_decoder_keeps_its_stacks_apart():
    config = transformers.SwitchTransformersConfig(
        d_model=16, d_kv=8, d_ff=32, num_layers=2, num_decoder_layers=2, num_heads=2, vocab_size=20, num_experts=2
    )
    module = transformers.AutoModel.from_config(config).eval()
    batch = text_batch(6, 6)
    ids = batch.inputs["input_ids"]
    both = Batch(
        batch.inputs | {"decoder_input_ids": ids[:, :4]},
        batch.keys,
        batch.starts,
        batch.valid,
        batch.special,
        batch.valid[:, :4],
        batch.special[:, :4],
    )
    seen = run(HiddenCapture(module), both)
    assert seen["encoder.block.1"].shape == (12, 16)
    assert seen["decoder.block.1"].shape == (8, 16)


def test_a_guess_that_fails_gives_way_to_the_states_of_the_model():
    """XLNet's blocks run time-first, so what hooks see is not what the model returns."""
    module = transformers.XLNetModel(
        transformers.XLNetConfig(d_model=16, n_layer=2, n_head=2, d_inner=32, vocab_size=20)
    )
    module = module.eval()
    batch = text_batch(7, 4)
    capture = HiddenCapture(module)
    seen = run(capture, batch)
    assert "unknown architecture" in capture.notes[0]
    assert list(seen) == [site.name for site in capture.sites] == ["state.0", "state.1", "state.2"]
    returned = module(**batch.inputs, output_hidden_states=True).hidden_states
    for vectors, state in zip(seen.values(), returned, strict=True):
        torch.testing.assert_close(vectors, state[batch.valid])


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Linear(8, 8)

    def forward(self, state: Tensor) -> tuple[Tensor, None]:
        return state + self.mix(state), None


class Plain(nn.Module):
    """A network that no library knows; `early` puts its norm before the blocks."""

    def __init__(self, *, early: bool = False, depth: int = 2) -> None:
        super().__init__()
        self.table = nn.Embedding(20, 8)
        self.blocks = nn.ModuleList(Block() for _ in range(depth))
        self.norm = nn.LayerNorm(8)
        self.early = early

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        state = self.table(input_ids)
        state = self.norm(state) if self.early else state
        for block in self.blocks:
            state = block(state)[0]
        return state if self.early else self.norm(state)


def test_a_plain_network_is_hooked_and_said_to_be_unchecked():
    capture = HiddenCapture(Plain())
    seen = run(capture, text_batch(5, 3))
    assert list(seen) == ["embeddings", "block.0", "block.1", "final_norm"]
    assert {len(vectors) for vectors in seen.values()} == {8}
    assert "nothing to check with" in capture.notes[0]


def test_a_norm_before_the_blocks_is_not_final():
    seen = run(HiddenCapture(Plain(early=True)), text_batch(5))
    assert list(seen) == ["embeddings", "block.0", "block.1"]


def test_a_chosen_site_survives_the_check():
    capture = HiddenCapture(Plain(), sites="block.1")
    assert list(run(capture, text_batch(5))) == ["block.1"]
    assert list(run(capture, text_batch(5))) == ["block.1"]


class Unused(Plain):
    """Its list of blocks is never run."""

    def forward(self, input_ids: Tensor, attention_mask: Tensor, output_hidden_states: bool = False) -> Any:
        states = (self.table(input_ids), 2 * self.table(input_ids))
        return SimpleNamespace(hidden_states=states if output_hidden_states else None)


def test_blocks_that_do_not_run_give_way_to_the_states_of_the_model():
    assert len(run(HiddenCapture(Unused()), text_batch(5))) == 2


def test_a_model_that_shows_nothing_is_refused():
    class Mute(Plain):
        def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
            return self.table(input_ids)

    with pytest.raises(ModelError, match="cannot be found"):
        run(HiddenCapture(Mute()), text_batch(5))


def test_the_outermost_list_with_the_most_weights_is_taken():
    class Nested(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.front = nn.ModuleList([nn.Sequential(nn.Linear(2, 2))])
            self.trunk = nn.Sequential(*(nn.Sequential(nn.Sequential(nn.Linear(8, 8)), nn.ReLU()) for _ in range(3)))

    assert [site.path for site in find_sites(Nested()) if site.kind == "block"] == ["trunk.0", "trunk.1", "trunk.2"]


def test_blocks_of_several_classes_are_one_stack():
    """Jamba's blocks are of two classes, attention and Mamba, some with experts."""
    config = transformers.JambaConfig(
        **SMALL,
        num_key_value_heads=1,
        num_experts=2,
        attn_layer_period=2,
        attn_layer_offset=1,
        mamba_d_state=4,
        use_mamba_kernels=False,
    )
    module = transformers.JambaModel(config).eval()
    assert len({type(block) for block in module.layers}) == 2
    batch = text_batch(6, 6)
    capture = HiddenCapture(module)
    seen = run(capture, batch)
    assert list(seen) == ["embeddings", "block.0", "block.1", "final_norm"]
    returned = module(**batch.inputs, output_hidden_states=True).hidden_states
    torch.testing.assert_close(seen["block.0"], returned[1].flatten(0, 1))
    torch.testing.assert_close(seen["final_norm"], returned[2].flatten(0, 1))


class Streams(nn.Module):
    """Three residual streams; `first` puts them before the batch, as Gemma-3n does."""

    def __init__(self, *, first: bool) -> None:
        super().__init__()
        self.table = nn.Embedding(20, 8)
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.axis = 0 if first else 2

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        state = torch.stack([self.table(input_ids)] * 3, self.axis)
        for block in self.blocks:
            state = block(state)[0]
        return state


@pytest.mark.parametrize("first", [False, True])
def test_streams_are_one_vector_per_token(first):
    """(2, 5, 3, 8) is no map of five channels: it is ten vectors of 24."""
    module, batch = Streams(first=first), text_batch(5, 4)
    seen = run(HiddenCapture(module), batch)["block.1"]
    returned = module(**batch.inputs)
    expected = [returned[:, b, t] if first else returned[b, t] for b, t in batch.valid.nonzero().tolist()]
    torch.testing.assert_close(seen, torch.stack(expected).flatten(1))


def test_channels_that_come_last_are_the_vectors():
    """SAM keeps its maps as (B, H, W, C)."""
    config = transformers.SamVisionConfig(
        **zoo.sizes(mlp_dim=32), image_size=32, patch_size=8, output_channels=8, window_size=2, global_attn_indexes=[1]
    )
    module = transformers.SamVisionModel(config).eval()
    pixels, valid = torch.rand(2, 3, 32, 32), torch.ones(2, 1, dtype=torch.bool)
    batch = Batch({"pixel_values": pixels}, ["a", "b"], [0, 0], valid, ~valid)
    seen = run(HiddenCapture(module), batch)
    expected = module(pixels, output_hidden_states=True).hidden_states[1]  # (2, 4, 4, 16)
    torch.testing.assert_close(seen["block.0"], expected.reshape(32, 16))


def test_a_state_that_mixes_the_inputs_of_a_batch_is_refused():
    class Packed(Plain):
        """All inputs in one row, as Pixtral packs its pictures."""

        def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
            state = self.table(input_ids).flatten(0, 1)[None]
            for block in self.blocks:
                state = block(state)[0]
            return self.norm(state)

    assert run(HiddenCapture(Packed()), text_batch(5))["block.1"].shape == (5, 8)
    with pytest.raises(ModelError, match=r"keep the inputs of a batch apart(.|\n)*--batch-tokens 1"):
        run(HiddenCapture(Packed()), text_batch(5, 5))
