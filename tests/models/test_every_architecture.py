"""Every architecture of transformers that can be made small is captured, and `block.K` is the library's own state.

A random model of each is run once with hooks and once with `output_hidden_states`; what the library returns must be
what the sites saw, in order, to 1e-9 (1e-5 where a model computes in float32 whatever it is given). Only the last block
of a stack may be missing from what the library returns: it may show it after the final norm only. Architectures for
which this does not hold are in the tables below, which fail when they are out of date.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
import torch
from torch import Tensor

import tiny_models as tiny
from anisoscope.capture.hidden import HiddenCapture
from anisoscope.capture.inputs import model_inputs
from anisoscope.capture.unknown import library_states
from anisoscope.errors import AnisoscopeError
from anisoscope.models.batches.text import UNPADDED

INPUTS = ("input_ids", "input_values", "input_features", "pixel_values")
FEWEST = 270  # that agree; a newer transformers may bring more

# Not made, or not run: nothing of anisoscope is involved.
NOT_MADE = {
    "takes more than its main input": """
        audioflamingo3_encoder bros clvp cosmos3_edge_vision exaone4_5_vision fun_asr_nano_encoder glm_image_vision
        grounding-dino hunyuan_vl_vision minicpm_ocr_vision minicpmv4_7_vision mm-grounding-dino muse_glimmer_vision
        muse_spark_vision sam3_lite_text_text_model seggpt siglip2_vision_model video_llama_3_vision
    """,
    "stays large when the usual size fields are small": """
        bark dac deimv2 depth_pro dia edgetam_video encodec fastspeech2_conformer fastspeech2_conformer_with_hifigan
        hgnet_v2 lightglue mimi_encoder nemotron3_5_asr nemotron_asr_streaming neucodec parakeet_rnnt parakeet_tdt
        pe_audio pe_audio_encoder pp_doclayout_v3 pp_doclayout_v4 pp_ocrv5_mobile_rec pp_ocrv5_server_rec
        qwen3_asr_encoder rt_detr rt_detr_v2 sam2 sam2_hiera_det_model sam2_video sam2_vision_model
        sam3_tracker_video sam3_video univnet uvdoc vibevoice_acoustic_tokenizer
        vibevoice_acoustic_tokenizer_decoder vibevoice_acoustic_tokenizer_encoder vits xcodec2
    """,
    "has sizes that depend on each other in its own way": """
        cohere_compass_text d_fine dbrx dots1 efficientloftr gemma4_audio glm5_next_text levit lw_detr mask2former
        mimi mimo_v2_flash mobilevitv2 moonshine_streaming muse_spark_audio musicgen musicgen_melody
        nemotron3_5_transcribe_audio nemotron3_diarization pocket_tts_audio_tokenizer
        pocket_tts_audio_tokenizer_encoder pp_ocrv6_medium_det pp_ocrv6_small_det pp_ocrv6_small_rec
        pp_ocrv6_tiny_rec rf_detr sam sam3_tracker sam_hq speecht5 textnet xcodec zamba2
    """,
    "needs a library that is not installed here": """
        conditional_detr dab-detr deformable_detr detr dinat edgetam edgetam_vision_model gemma3n_vision omdet-turbo
        pe_audio_video pe_audio_video_encoder pe_video table-transformer timm_backbone timm_wrapper
    """,
    "reads video": """
        timesformer videomae vivit
    """,
}
# Opened, and their own hidden_states are measured as `state.K`: what the hooks see is not what the library returns.
OWN_STATES = {
    "runs time-first": """
        fsmt xlnet
    """,
    "keeps the parts of its blocks in separate lists": """
        flaubert xlm
    """,
    "pads or prefixes the input of its blocks, and returns what is left without it": """
        cpmant led longformer pegasus_x
    """,
    "carries several streams, which are joined after the last block": """
        deepseek_v4 hy_v4 prophetnet qwen4_exp_text
    """,
    "runs its blocks or its norm more than once": """
        hrm_text nanochat
    """,
    "pools, or widens the last state": """
        embedding_gemma2_text funnel qwen2_audio_encoder
    """,
    "runs its blocks past their hooks": """
        glpn pvt squeezebert
    """,
    "has its blocks in lists within lists": """
        maskformer maskformer-swin mobilevit poolformer pvt_v2 sam3_vision_model swiftformer
    """,
}
# Refused, with what to do.
REFUSED = {"packs all pictures of a batch into one row": "pixtral"}
# `block.K` is measured, and is meant to differ from what the library returns.
DIFFERENT = {
    "the library takes the class token off": """
        cvt
    """,
    "the library returns what the next stage makes of it": """
        swin
    """,
    "hides other patches in every pass": """
        vit_mae
    """,
}


@pytest.fixture(scope="module")
def looked_at() -> dict[str, tuple[str, float | None]]:
    """What became of each architecture, in words, and how far padding moves its last state."""
    torch.set_num_threads(1)
    found: dict[str, tuple[str, float | None]] = {}
    with torch.inference_mode():
        for name, config in tiny.architectures(*INPUTS).items():
            try:
                module = tiny.tiny_model(config)
            except Exception as error:  # as many kinds as there are architectures
                found[name] = f"not made: {type(error).__name__} {error}", None
            else:
                found[name] = outcome(config, module), moved_by_padding(module)
    return found


@pytest.fixture(scope="module")
def found(looked_at: dict[str, tuple[str, float | None]]) -> dict[str, str]:
    return {name: words for name, (words, _) in looked_at.items()}


def outcome(config_class: Any, module: Any) -> str:
    try:
        batch = tiny.tiny_batch(module)
        returned = library_states(module, model_inputs(module, batch.inputs))
    except Exception as error:  # as many kinds as there are architectures
        return f"not made: {type(error).__name__} {error}"
    try:
        capture, seen = HiddenCapture(module), dict[str, Tensor]()
        capture.run(batch, lambda site, vectors, _: seen.__setitem__(site, vectors.clone()))
    except AnisoscopeError as error:
        return f"refused: {error}"
    if next(iter(seen)).rpartition("state.")[1]:
        return "own states"
    tolerance = 1e-5 if config_class.model_type in tiny.FLOAT32 else 1e-9
    sides = ("encoder.", "decoder.") if "encoder.state.0" in returned else ("",)
    wrong = [side for side in sides if not agree(side, seen, returned, tolerance, text="input_ids" in batch.inputs)]
    return f"different: {wrong}" if wrong else "agrees"


def agree(side: str, seen: dict[str, Tensor], returned: dict[str, Tensor], tolerance: float, *, text: bool) -> bool:
    """Whether the library's states of one stack are those of the sites, in order."""
    states = [as_rows(state, text=text) for name, state in returned.items() if name.startswith(f"{side}state.")]
    missed = list(unmatched(side, seen, states, tolerance))
    staged = any(name.startswith("stage.") for name in seen)  # there the library returns the last block of each stage
    return not states and (staged or len(missed) <= 1)


def unmatched(side: str, seen: dict[str, Tensor], states: list[Tensor], tolerance: float) -> Iterator[str]:
    """The blocks that are not the next of the states; those that are leave the list."""
    for name, vectors in seen.items():
        if name.startswith(side):
            if states and near(vectors, states[0], tolerance):
                states.pop(0)
            elif "block" in name:
                yield name


def near(a: Tensor, b: Tensor, tolerance: float) -> bool:
    return a.shape == b.shape and bool((a - b).abs().max() <= tolerance * b.abs().max())


def as_rows(state: Tensor, *, text: bool) -> Tensor:
    if text and state.dim() == 4:
        return state.movedim(0, 2).flatten(2).flatten(0, 1)  # the streams of Gemma-3n
    if state.dim() == 4 and state.shape[1] == state.shape[2] and state.shape[3] == 32:  # SAM: a square, channels last
        return state.flatten(0, 2)
    return state.flatten(2).transpose(1, 2).flatten(0, 1) if state.dim() == 4 else state.flatten(0, -2)


def names(table: dict[str, str]) -> set[str]:
    return set(" ".join(table.values()).split())


def told(found: dict[str, str], beginning: str) -> set[str]:
    return {name for name, words in found.items() if words.startswith(beginning)}


@pytest.mark.slow
def test_blocks_are_the_states_of_the_library(found: dict[str, str]) -> None:
    assert told(found, "different") == names(DIFFERENT)
    assert len(told(found, "agrees")) >= FEWEST


@pytest.mark.slow
def test_what_cannot_be_hooked_is_measured_by_its_own_states(found: dict[str, str]) -> None:
    assert told(found, "own states") == names(OWN_STATES)


@pytest.mark.slow
def test_what_runs_is_refused_only_with_a_reason(found: dict[str, str]) -> None:
    assert told(found, "refused") == names(REFUSED)


@pytest.mark.slow
def test_what_cannot_be_made_is_known(found: dict[str, str]) -> None:
    assert told(found, "not made") == names(NOT_MADE)


def moved_by_padding(module: Any) -> float | None:
    """How far masked padding moves the last state of a short text, relative to its size; None if it takes no mask."""
    if module.main_input_name != "input_ids" or "attention_mask" not in inspect.signature(module.forward).parameters:
        return None
    with suppress(Exception):  # what cannot be run is another test's affair
        return _moved_by_padding(module)
    return None


def _moved_by_padding(module: Any) -> float | None:
    batch = tiny.tiny_batch(module)
    ids, mask = batch.inputs["input_ids"][1:], batch.inputs["attention_mask"][1:]
    decoder = {name: values[1:] for name, values in batch.inputs.items() if name.startswith("decoder")}
    short = 11
    alone = last_state(module, {"input_ids": ids[:, :short], "attention_mask": mask[:, :short], **decoder})
    padded = ids.index_fill(1, torch.arange(short, 16), 1), mask.index_fill(1, torch.arange(short, 16), 0)
    beside = last_state(module, {"input_ids": padded[0], "attention_mask": padded[1], **decoder})
    if alone.dim() != 3:  # a pooled vector
        return None
    return float((beside[:, : alone.shape[1]] - alone).abs().max() / alone.abs().max())


def last_state(module: Any, inputs: dict[str, Tensor]) -> Tensor:
    outputs = module(**model_inputs(module, inputs))
    encoder = getattr(outputs, "encoder_last_hidden_state", None)
    return outputs[0] if encoder is None else encoder


@pytest.mark.slow
def test_only_families_that_are_never_padded_would_be_changed_by_it(
    looked_at: dict[str, tuple[str, float | None]],
) -> None:
    moved = {name: change for name, (_, change) in looked_at.items() if change is not None}
    assert len(moved) > 190
    shown_elsewhere = {"big_bird", "bigbird_pegasus", "mobilebert", "reformer"}  # in long texts, or trained weights
    assert {name for name, change in moved.items() if change > 1e-5} == UNPADDED - shown_elsewhere
