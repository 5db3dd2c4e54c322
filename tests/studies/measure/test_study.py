"""Every architecture, saved as published and measured from disk, against brute force on states of plain hooks.

The reference shares nothing with the measurement but the weights: each document, clip or picture runs alone through the
library's own processor, so that no padding exists, and the average cosine is taken over all pairs in float64.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import torch
from PIL import Image
from torch import nn

import zoo
from anisoscope.errors import InputError, StoreError, UsageError
from anisoscope.runs.measurement import Measurement
from anisoscope.runs.perform import perform
from anisoscope.runs.settings import Machine
from anisoscope.runs.table import is_embedding
from anisoscope.studies.measure import MeasureSettings

torch.set_num_threads(1)

TEXTS = (
    "Representations drift together.",
    "A cloud away from the origin looks narrow.",
    "Queries and keys drift as well.",
    "Sounds and pictures",
)
SAMPLES = (8000, 16000, 12345, 8000)
RATE = 16_000

# The class of the blocks and the paths of the norms, from the library's source.
T5_NORMS = {"encoder.final_norm": "encoder.final_layer_norm", "decoder.final_norm": "decoder.final_layer_norm"}
ARCHITECTURES: dict[str, tuple[set[str], dict[str, str]]] = {
    "bert": ({"BertLayer"}, {}),
    "roberta": ({"RobertaLayer"}, {}),
    "mpnet": ({"MPNetLayer"}, {}),
    "modernbert": ({"ModernBertEncoderLayer"}, {"final_norm": "final_norm"}),
    "canine": ({"CanineLayer"}, {}),
    "gpt2": ({"GPT2Block"}, {"final_norm": "ln_f"}),
    "opt": ({"OPTDecoderLayer"}, {"final_norm": "decoder.final_layer_norm"}),
    "gpt_neox": ({"GPTNeoXLayer"}, {"final_norm": "final_layer_norm"}),
    "llama": ({"LlamaDecoderLayer"}, {"final_norm": "norm"}),
    "falcon": ({"FalconDecoderLayer"}, {"final_norm": "ln_f"}),
    "mamba": ({"MambaBlock"}, {"final_norm": "norm_f"}),
    "t5": ({"T5Block"}, T5_NORMS),
    "byt5": ({"T5Block"}, T5_NORMS),
    "wav2vec2": ({"Wav2Vec2EncoderLayer"}, {}),
    "wav2vec2_stable": ({"Wav2Vec2EncoderLayerStableLayerNorm"}, {"final_norm": "encoder.layer_norm"}),
    "hubert": ({"HubertEncoderLayer"}, {}),
    "whisper": (
        {"WhisperEncoderLayer", "WhisperDecoderLayer"},
        {"encoder.final_norm": "encoder.layer_norm", "decoder.final_norm": "decoder.layer_norm"},
    ),
    "vit": ({"ViTLayer"}, {"final_norm": "layernorm"}),
    "deit": ({"DeiTLayer"}, {"final_norm": "layernorm"}),
    "beit": ({"BeitLayer"}, {}),
    "segformer": ({"SegformerLayer"}, {f"stage.{k}.norm": f"stages.{k}.layer_norm" for k in range(4)}),
    "resnet": ({"ResNetBottleNeckLayer"}, {}),
    "efficientnet": ({"EfficientNetBlock"}, {}),
    "cvt": ({"CvtLayer"}, {}),
    "convnext": ({"ConvNextLayer"}, {}),
    "mobilenet_v2": ({"MobileNetV2InvertedResidual"}, {}),
    "character_bert": ({"BertLayer"}, {}),
    "manta": ({"T5Block"}, {**T5_NORMS, "encoder.final_norm": "encoder.t5_encoder.final_layer_norm"}),
    "van": ({"VanBlock"}, {f"stage.{k}.norm": f"encoder.stages.{k}.normalization" for k in range(4)}),
    "clip:text": ({"CLIPEncoderLayer"}, {"final_norm": "final_layer_norm"}),
    "clip:vision": ({"CLIPEncoderLayer"}, {}),
}


# --- the data, in memory and on disk ----------------------------------------------------------------------------------


@cache
def waves() -> tuple[np.ndarray, ...]:
    rng = np.random.default_rng(0)
    return tuple(rng.standard_normal(n, dtype=np.float32) / 10 for n in SAMPLES)


@cache
def pictures() -> tuple[Image.Image, ...]:
    pixels = np.random.default_rng(1).integers(0, 256, (4, 70, 90, 3), dtype=np.uint8)
    return tuple(Image.fromarray(one) for one in pixels)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A folder of files for each modality."""
    folders = {kind: tmp_path_factory.mktemp(kind) for kind in ("text", "speech", "vision")}
    for k, text in enumerate(TEXTS):
        (folders["text"] / f"{k}.txt").write_text(text, encoding="utf-8")
    for k, wave in enumerate(waves()):
        soundfile.write(folders["speech"] / f"{k}.wav", wave, RATE, subtype="FLOAT")
    for k, picture in enumerate(pictures()):
        picture.save(folders["vision"] / f"{k}.png")
    return folders


def modality_of(name: str) -> str:
    base, _, tower = name.partition(":")
    return tower or zoo.modality(base)


def measured(name: str, data: dict[str, Path], folder: Path, **options: Any) -> Measurement:
    """Save the specimen as published, then measure it by its path."""
    base, _, tower = name.partition(":")
    checkpoint = zoo.save(base, folder / "checkpoint")
    settings = {"data": [str(data[modality_of(name)])], "documents": "file", "spectrum": False, "neighbours": False}
    chosen = MeasureSettings(models=[str(checkpoint)], tower=tower or None, **{**settings, **options})
    return perform("measure", chosen, out=folder / "run")


# --- the reference ----------------------------------------------------------------------------------------------------


def body_of(name: str) -> nn.Module:
    base, _, tower = name.partition(":")
    module = zoo.module(base)
    return getattr(module, f"{tower}_model") if tower else module


def single_inputs(name: str, module: nn.Module) -> Iterator[dict[str, Any]]:
    """Each item alone, as the library's own processor prepares it."""
    base, kind = name.partition(":")[0], modality_of(name)
    processor = zoo.processor(base)
    if kind == "vision":
        images = getattr(processor, "image_processor", processor)
        for picture in pictures():
            yield {"pixel_values": images(images=picture, return_tensors="pt")["pixel_values"]}
    elif kind == "speech":
        extractor = getattr(processor, "feature_extractor", processor)
        for wave in waves():
            features = extractor(wave, sampling_rate=RATE, return_tensors="pt")
            if base == "whisper":
                start = processor.tokenizer("")["input_ids"][:-1]  # without the end of text
                yield {"input_features": features["input_features"], "decoder_input_ids": torch.tensor([start])}
            else:
                yield {"input_values": features["input_values"]}
    else:
        tokenizer = getattr(processor, "tokenizer", processor)
        for text in TEXTS:
            ids = torch.tensor([list(tokenizer(text)["input_ids"])])
            yield {"input_ids": ids, **decoder_inputs(module, ids)}


def decoder_inputs(module: nn.Module, ids: torch.Tensor) -> dict[str, torch.Tensor]:
    if "decoder_input_ids" not in inspect.signature(module.forward).parameters:
        return {}
    return {"decoder_input_ids": torch.cat([torch.tensor([[0]]), ids[:, :-1]], dim=1)}  # T5 starts with its pad, 0


def plain_states(module: nn.Module, inputs: dict[str, Any], classes: set[str], norms: dict[str, str]) -> Any:
    """What enters and leaves each block in order of calls, and what leaves the norms, by plain hooks."""
    entered, left, ends = [], [], {}

    def before(_module: nn.Module, args: Any, kwargs: Any) -> None:
        entered.append(rows_of(args[0] if args else kwargs["hidden_states"]))

    def after(_module: nn.Module, _args: Any, output: Any) -> None:
        left.append(rows_of(output))

    handles = []
    for part in module.modules():
        if type(part).__name__ in classes:
            handles += [part.register_forward_pre_hook(before, with_kwargs=True), part.register_forward_hook(after)]
    for site, path in norms.items():
        handles.append(
            module.get_submodule(path).register_forward_hook(
                lambda _m, _a, output, site=site: ends.__setitem__(site, rows_of(output))
            )
        )
    with torch.no_grad():
        module(**inputs)
    for handle in handles:
        handle.remove()
    return entered, left, ends


def rows_of(state: Any) -> np.ndarray:
    """A state of one item, (1, T, d) or (1, C, H, W), as (T, d) in float64."""
    while not isinstance(state, torch.Tensor):
        state = state[0]
    state = state.movedim(1, -1) if state.dim() == 4 else state
    return state.flatten(0, -2).double().numpy()


def reference(name: str, sites: list[str]) -> dict[str, list[np.ndarray]]:
    """The states of every item at every site: blocks by the order of their calls, embeddings as what enters one."""
    module, (classes, norms) = body_of(name), ARCHITECTURES[name]
    blocks = [site for site in sites if "block." in site]
    states: dict[str, list[np.ndarray]] = {site: [] for site in sites}
    for number, inputs in enumerate(single_inputs(name, module)):
        entered, left, ends = plain_states(module, inputs, classes, norms)
        assert len(left) == len(blocks)
        for site, entering, leaving in zip(blocks, entered, left, strict=True):
            states[site].append(leaving)
            before = site.removesuffix("block.0") + "embeddings"
            before = "embeddings" if site == "stage.0.block.0" else before
            if site.endswith("block.0") and before in states:
                states[before].append(entering)
        for site, state in ends.items():
            states[site].append(state)
        if name == "whisper":  # of the padded window only what hears the clip: 160 samples a frame, 2 frames a state
            heard = math.ceil(math.ceil(SAMPLES[number] / 160) / 2)
            for site in sites:
                if site.startswith("encoder."):
                    states[site][-1] = states[site][-1][:heard]
    return states


def average_cosine(vectors: np.ndarray) -> float:
    """Over all pairs, one by one in float64."""
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    upper = np.triu_indices(len(unit), k=1)
    return float((unit @ unit.T)[upper].mean())


# --- tests ------------------------------------------------------------------------------------------------------------


def test_every_architecture_of_the_zoo_is_here():
    assert {name.partition(":")[0] for name in ARCHITECTURES} == set(zoo.NAMES)


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_average_cosines_equal_brute_force_on_states_of_plain_hooks(name, data, tmp_path):
    found = measured(name, data, tmp_path)
    ours = {
        positions: {row.site: row for row in found.rows if row.metric == "mean_cosine" and row.positions == positions}
        for positions in ("all", "rest")
    }
    expected = reference(name, [site for site in ours["all"] if not is_embedding(site)])
    assert set(ARCHITECTURES[name][1]) == {site for site in ours["all"] if site.endswith("norm")}
    for site, states in expected.items():
        row = ours["all"][site]
        assert row.n == sum(map(len, states)), site
        assert row.value == pytest.approx(average_cosine(np.concatenate(states)), abs=1e-6), site
        rest = ours["rest"].get(site)
        if rest is not None and rest.value is not None:
            later = [state[1:] for state in states]
            assert rest.n == sum(map(len, later)), site
            assert rest.value == pytest.approx(average_cosine(np.concatenate(later)), abs=1e-6), site
    is_map = all("stage." in site or site == "embeddings" for site in expected)
    assert (not ours["rest"]) == is_map  # a map has no first position, everything else has


def test_pairs_within_and_between_sequences_are_told_apart(data, tmp_path):
    found = measured("gpt2", data, tmp_path)
    states = reference(
        "gpt2", [row.site for row in found.rows if row.metric == "mean_cosine" and row.positions == "all"]
    )
    for site, clouds in states.items():
        unit = [cloud / np.linalg.norm(cloud, axis=1, keepdims=True) for cloud in clouds]
        within = np.concatenate([(u @ u.T)[np.triu_indices(len(u), k=1)] for u in unit])
        between = np.concatenate([(u @ v.T).ravel() for i, u in enumerate(unit) for v in unit[i + 1 :]])
        assert found.value("mean_cosine_intra", site=site) == pytest.approx(within.mean(), abs=1e-6)
        assert found.value("mean_cosine_inter", site=site) == pytest.approx(between.mean(), abs=1e-6)


def test_special_tokens_can_be_dropped(data, tmp_path):
    found = measured("bert", data, tmp_path, specials="drop")
    states = reference("bert", ["embeddings", "block.0", "block.1", "block.2"])
    for site, clouds in states.items():
        inner = np.concatenate([cloud[1:-1] for cloud in clouds])  # without [CLS] and [SEP]
        assert found.value("mean_cosine", site=site) == pytest.approx(average_cosine(inner), abs=1e-6)
    assert not [row for row in found.rows if row.positions == "first" and row.value is not None]


def test_flattened_maps_are_one_vector_an_image_and_build_no_square_matrix(data, tmp_path):
    found = measured("resnet", data, tmp_path, maps="flatten", spectrum=True)
    sites = [row.site for row in found.rows if row.metric == "mean_cosine"]
    for site, maps in reference("resnet", sites).items():
        flat = np.stack([one.ravel() for one in maps])
        assert found.value("mean_cosine", site=site) == pytest.approx(average_cosine(flat), abs=1e-6)
        assert found.value("dimension", site=site) == flat.shape[1]
    assert found.run is not None
    squares = [name for name, kept in found.run.state().items() if kept.ndim == 2 and len(kept) == kept.shape[1]]
    assert squares == []


def test_only_the_sites_asked_for_are_measured(data, tmp_path):
    found = measured("gpt2", data, tmp_path, sites=["block.[12]", "final_norm"])
    assert list(dict.fromkeys(row.site for row in found.rows)) == ["block.1", "block.2", "final_norm", "layers"]


def test_an_unknown_site_is_refused_with_the_names_there_are(data, tmp_path):
    with pytest.raises(UsageError, match=r"block\.2, final_norm"):
        measured("gpt2", data, tmp_path, sites=["layer.1"])


def test_a_limit_counts_documents(data, tmp_path):
    found = measured("bert", data, tmp_path, limit=2)
    states = reference("bert", ["embeddings", "block.0", "block.1", "block.2"])["block.2"][:2]
    assert found.value("mean_cosine", site="block.2") == pytest.approx(average_cosine(np.concatenate(states)), abs=1e-6)
    assert next(iter(found.data.values()))["documents"] == 2


def test_long_documents_are_cut_into_windows_and_nothing_is_lost(data, tmp_path):
    whole, cut = measured("bert", data, tmp_path / "a"), measured("bert", data, tmp_path / "b", length=10)
    tokens = sum(len(zoo.processor("bert")(text)["input_ids"]) - 2 for text in TEXTS)
    windows = next(iter(cut.data.values()))["windows"]
    assert windows > len(TEXTS)
    n = {name: next(r.n for r in found.rows if r.metric == "mean_cosine") for name, found in (("w", whole), ("c", cut))}
    assert n == {"w": tokens + 2 * len(TEXTS), "c": tokens + 2 * windows}


def test_several_models_make_one_run(data, tmp_path):
    folders = [str(zoo.save(name, tmp_path / name)) for name in ("gpt2", "bert")]
    settings = {"data": [str(data["text"])], "documents": "file", "spectrum": False, "neighbours": False}
    both = perform("measure", MeasureSettings(models=folders, **settings), out=tmp_path / "both")
    assert list(dict.fromkeys(row.model for row in both.rows)) == ["gpt2", "bert"]
    for name, folder in zip(("gpt2", "bert"), folders, strict=True):
        alone = perform("measure", MeasureSettings(models=[folder], **settings), out=tmp_path / f"{name}-run")
        together = [row for row in both.rows if row.model == name]
        assert [(r.site, r.metric, r.value) for r in alone.rows] == [(r.site, r.metric, r.value) for r in together]
    assert "of 9 sites" in str(both.verdict)  # five of one, four of the other


def test_models_of_two_modalities_share_no_data(data, tmp_path):
    folders = [str(zoo.save(name, tmp_path / name)) for name in ("bert", "vit")]
    settings = MeasureSettings(models=folders, data=[str(data["text"])], documents="file", neighbours=False)
    with pytest.raises((InputError, UsageError)):
        perform("measure", settings, out=tmp_path / "run")


def test_batch_size_does_not_matter(data, tmp_path):
    checkpoint = zoo.save("llama", tmp_path / "llama")
    settings = MeasureSettings(models=[str(checkpoint)], data=[str(data["text"])], documents="file", neighbours=False)
    padded, alone = (
        perform("measure", settings, machine=Machine(batch_tokens=tokens), out=tmp_path / str(tokens))
        for tokens in (8192, 1)
    )
    for a, b in zip(padded.rows, alone.rows, strict=True):
        assert (a.site, a.metric, a.n) == (b.site, b.metric, b.n)
        if a.metric in ("mean_cosine", "drift_norm", "drift_ratio", "mean_norm", "isoscore"):
            assert a.value == pytest.approx(b.value, abs=2e-6)


# --- using a run again ------------------------------------------------------------------------------------------------


@pytest.fixture
def small(data, tmp_path) -> MeasureSettings:
    texts = tmp_path / "texts"
    texts.mkdir()
    for k, text in enumerate(TEXTS):
        (texts / f"{k}.txt").write_text(text, encoding="utf-8")
    checkpoint = zoo.save("gpt2", tmp_path / "gpt2")
    return MeasureSettings(
        models=[str(checkpoint)], data=[str(texts)], documents="file", spectrum=False, neighbours=False
    )


def test_a_finished_run_is_used_again(small, tmp_path, monkeypatch):
    before = perform("measure", small, out=tmp_path / "run")
    monkeypatch.setattr("anisoscope.models.open.open_model", lambda *_, **__: pytest.fail("opened again"))
    again = perform("measure", small, out=tmp_path / "run")
    assert again.rows == before.rows
    assert again.verdict == before.verdict


def test_changed_data_is_refused(small, tmp_path):
    before = perform("measure", small, out=tmp_path / "run")
    Path(small.data[0], "0.txt").write_text("Something else altogether.", encoding="utf-8")
    with pytest.raises(StoreError, match=r"the data .* changed"):
        perform("measure", small, out=tmp_path / "run")
    after = perform("measure", small, out=tmp_path / "run", existing="replace")
    assert after.value("mean_cosine", site="block.0") != before.value("mean_cosine", site="block.0")


def test_other_settings_are_refused_by_name(small, tmp_path):
    perform("measure", small, out=tmp_path / "run")
    with pytest.raises(StoreError, match="specials was 'keep', now 'drop'"):
        perform("measure", small.model_copy(update={"specials": "drop"}), out=tmp_path / "run")


def test_no_model_is_bad_use():
    with pytest.raises(UsageError, match="'models'"):
        perform("measure", {"models": []})
