"""Which positions count at each site, exactly."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import transformers

import zoo
from anisoscope.capture.hidden import HiddenCapture
from anisoscope.capture.masks import RowIndex
from anisoscope.capture.sites import find_sites
from anisoscope.errors import ModelError
from anisoscope.models.batches.plan import Batch


def rows_of(module: Any, batch: Batch, **options: Any) -> dict[str, RowIndex]:
    seen: dict[str, RowIndex] = {}

    def sink(site: str, vectors: torch.Tensor, rows: RowIndex) -> None:
        assert len(vectors) == len(rows.row) == len(rows.position) == len(rows.first)
        seen[site] = rows

    HiddenCapture(module, **options).run(batch, sink)
    return seen


def places(rows: RowIndex) -> list[list[int]]:
    """The counted positions of each row of the batch."""
    return [rows.position[rows.row == row].tolist() for row in range(max(rows.row, default=-1) + 1)]


def firsts(rows: RowIndex) -> list[tuple[int, int]]:
    return list(zip(rows.row[rows.first].tolist(), rows.position[rows.first].tolist(), strict=True))


def text(lengths: list[int], *, ends: tuple[int, int] = (1, 1), left: bool = False) -> Batch:
    """Rows of tokens 5, 6, … with specials at their ends, padded right or left."""
    width = max(lengths)
    at = torch.arange(width) - torch.tensor([width - n if left else 0 for n in lengths])[:, None]
    valid = (at >= 0) & (at < torch.tensor(lengths)[:, None])
    special = valid & ((at < ends[0]) | (at >= torch.tensor(lengths)[:, None] - ends[1]))
    inputs = {"input_ids": torch.where(valid, at + 5, 0), "attention_mask": valid.long()}
    return Batch(inputs, [str(k) for k in range(len(lengths))], [0] * len(lengths), valid, special)


def test_padding_never_counts_and_position_0_is_first(opened):
    rows = rows_of(opened("bert").module, text([6, 4]))["block.1"]
    assert places(rows) == [[0, 1, 2, 3, 4, 5], [0, 1, 2, 3]]
    assert firsts(rows) == [(0, 0), (1, 0)]


def test_dropped_specials_take_the_first_position_with_them(opened):
    rows = rows_of(opened("bert").module, text([6, 4]), specials="drop")["block.1"]
    assert places(rows) == [[1, 2, 3, 4], [1, 2]]
    assert firsts(rows) == []


def test_without_specials_dropping_them_changes_nothing(opened):
    batch = text([6, 4], ends=(0, 0))
    kept, dropped = (rows_of(opened("gpt2").module, batch, specials=choice)["block.1"] for choice in ("keep", "drop"))
    assert places(kept) == places(dropped)
    assert firsts(dropped) == [(0, 0), (1, 0)]


def test_padding_on_the_left_moves_the_first_position(opened):
    rows = rows_of(opened("gpt2").module, text([6, 4], ends=(0, 0), left=True))["block.1"]
    assert places(rows) == [[0, 1, 2, 3, 4, 5], [2, 3, 4, 5]]
    assert firsts(rows) == [(0, 0), (1, 2)]


def test_a_decoder_has_positions_of_its_own(opened):
    encoder, decoder = text([6, 4], ends=(0, 1)), text([3, 5], ends=(1, 0))
    inputs = encoder.inputs | {
        "decoder_input_ids": decoder.inputs["input_ids"],
        "decoder_attention_mask": decoder.inputs["attention_mask"],
    }
    batch = Batch(inputs, encoder.keys, encoder.starts, encoder.valid, encoder.special, decoder.valid, decoder.special)
    kept = rows_of(opened("t5").module, batch)
    assert places(kept["encoder.final_norm"]) == [[0, 1, 2, 3, 4, 5], [0, 1, 2, 3]]
    assert places(kept["decoder.final_norm"]) == [[0, 1, 2], [0, 1, 2, 3, 4]]
    dropped = rows_of(opened("t5").module, batch, specials="drop")
    assert places(dropped["encoder.block.0"]) == [[0, 1, 2, 3, 4], [0, 1, 2]]
    assert places(dropped["decoder.block.0"]) == [[1, 2], [1, 2, 3, 4]]


def test_a_batch_must_say_what_counts_in_the_decoder(opened):
    batch = text([6, 4])
    batch.inputs["decoder_input_ids"] = batch.inputs["input_ids"]
    with pytest.raises(ModelError, match="decoder_valid"):
        rows_of(opened("t5").module, batch)


def test_canine_counts_characters_and_molecules(opened):
    batch = text([101, 160])
    rows = rows_of(opened("canine").module, batch)
    assert [len(row) for row in places(rows["char.block.0"])] == [101, 160]
    assert [len(row) for row in places(rows["block.0"])] == [26, 40]
    assert [len(row) for row in places(rows["final.block.0"])] == [101, 160]
    dropped = rows_of(opened("canine").module, batch, specials="drop")
    assert places(dropped["embeddings"])[0] == list(range(1, 26))  # the first molecule is [CLS]
    assert places(dropped["final.block.0"])[0] == list(range(1, 100))


def speech(samples: list[int], width: int) -> Batch:
    valid = torch.arange(width) < torch.tensor(samples)[:, None]
    wave = torch.randn(len(samples), width, generator=torch.Generator().manual_seed(0)) * valid
    inputs = {"input_values": wave, "attention_mask": valid.long()}
    return Batch(inputs, ["a", "b"], [0, 0], valid, torch.zeros_like(valid))


def test_frames_of_padding_do_not_count():
    """With the published convolutions one second is 49 frames, half a second 24."""
    config = transformers.Wav2Vec2Config(
        **zoo.sizes(layers=1, inner=16),
        conv_dim=(8,) * 7,
        feat_extract_norm="layer",
        do_stable_layer_norm=True,
        num_conv_pos_embedding_groups=2,
    )
    rows = rows_of(transformers.Wav2Vec2Model(config).eval(), speech([16000, 8000], 16000))
    for site in ("embeddings", "block.0", "final_norm"):
        assert places(rows[site]) == [list(range(49)), list(range(24))]
        assert firsts(rows[site]) == [(0, 0), (1, 0)]


@pytest.mark.parametrize(("window", "states"), [("speech", [25, 100]), ("all", [100, 100])])
def test_whisper_with_and_without_the_padded_window(window, states, opened):
    valid = torch.arange(200) < torch.tensor([50, 200])[:, None]  # half a second and two seconds of mel frames
    inputs = {"input_features": torch.randn(2, 16, 200), "decoder_input_ids": torch.tensor([[1, 2, 3], [1, 2, 0]])}
    own = torch.tensor([[True, True, True], [True, True, False]])
    batch = Batch(inputs, ["a", "b"], [0, 0], valid, torch.zeros_like(valid), own, torch.zeros_like(own))
    rows = rows_of(opened("whisper").module, batch, whisper_window=window)
    assert [len(row) for row in places(rows["encoder.block.0"])] == states
    assert places(rows["decoder.block.0"]) == [[0, 1, 2], [0, 1]]


def picture(size: int, count: int = 2) -> Batch:
    valid = torch.ones(count, 1, dtype=torch.bool)
    pixels = torch.randn(count, 3, size, size)
    return Batch({"pixel_values": pixels}, ["a", "b"][:count], [0] * count, valid, ~valid)


@pytest.mark.parametrize(("name", "prefix"), [("vit", 1), ("deit", 2), ("beit", 1), ("clip:vision", 1)])
def test_prefix_tokens_are_special(name, prefix, opened):
    kept = rows_of(opened(name).module, picture(32))["block.1"]
    assert places(kept)[0] == list(range(prefix + 16))
    assert firsts(kept) == [(0, 0), (1, 0)]
    dropped = rows_of(opened(name).module, picture(32), specials="drop")["block.1"]
    assert places(dropped)[0] == list(range(prefix, prefix + 16))
    assert firsts(dropped) == []


def test_registers_are_special():
    config = transformers.Dinov2WithRegistersConfig(
        hidden_size=16, num_hidden_layers=1, num_attention_heads=2, image_size=32, patch_size=8, num_register_tokens=4
    )
    rows = rows_of(transformers.AutoModel.from_config(config).eval(), picture(32), specials="drop")
    assert places(rows["final_norm"])[0] == list(range(5, 21))


@pytest.mark.parametrize("name", ["segformer", "resnet", "efficientnet", "cvt", "convnext", "mobilenet_v2"])
def test_the_places_of_a_map_all_count_and_none_is_first(name, opened):
    rows = rows_of(opened(name).module, picture(64))
    assert rows.keys() == {site.name for site in find_sites(opened(name).module)}
    for here in rows.values():
        assert places(here)[0] == places(here)[1] == list(range(len(here.row) // 2))
        assert not here.first.any()


def test_the_class_token_of_cvt_is_special(opened):
    kept, dropped = (rows_of(opened("cvt").module, picture(64), specials=choice) for choice in ("keep", "drop"))
    assert places(kept["stage.2.block.0"])[0] == list(range(17))
    assert places(dropped["stage.2.block.0"])[0] == list(range(1, 17))
    assert places(dropped["stage.1.block.0"]) == places(kept["stage.1.block.0"])


def test_blocks_of_manta_all_count(opened, batches_for):
    model = opened("manta")
    batch = next(iter(batches_for(model)))[1]
    rows = rows_of(model.module, batch)
    assert len(batch) == 1
    blocks = len(rows["encoder.embeddings"].row)
    assert 0 < blocks <= batch.valid.shape[1]
    assert places(rows["encoder.final_norm"]) == [list(range(blocks))]
    assert places(rows["decoder.final_norm"]) == [list(range(batch.valid.shape[1]))]


def test_a_mask_of_another_length_is_refused(opened):
    batch = text([6, 4])
    wrong = Batch(batch.inputs, batch.keys, batch.starts, batch.valid[:, :5], batch.special[:, :5])
    with pytest.raises(ModelError, match="other positions"):
        rows_of(opened("bert").module, wrong)


class Shrinking(torch.nn.Module):
    """Halves the length of its input, as no table knows."""

    def __init__(self) -> None:
        super().__init__()
        self.table = torch.nn.Embedding(20, 8)
        self.blocks = torch.nn.ModuleList(torch.nn.Sequential(torch.nn.Linear(8, 8)) for _ in range(2))

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        state = self.table(input_ids)[:, ::2]
        for block in self.blocks:
            state = block(state)
        return state


def test_positions_of_an_unknown_model_must_be_clear():
    assert places(rows_of(Shrinking(), text([6, 6]))["block.1"]) == [[0, 1, 2], [0, 1, 2]]
    with pytest.raises(ModelError, match="one by one"):
        rows_of(Shrinking(), text([6, 4]))


def test_the_index_is_numpy(opened):
    rows = rows_of(opened("gpt2").module, text([6, 4]))["block.0"]
    assert (rows.row.dtype, rows.position.dtype, rows.first.dtype) == (np.int64, np.int64, np.bool_)
