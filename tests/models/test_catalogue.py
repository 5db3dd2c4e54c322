"""The catalogue of the papers' models: complete, findable, instant, and true where the library can be asked."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from anisoscope.errors import UsageError
from anisoscope.models.catalogue import at_hand, catalogue, lookup, series, suggest

# Figures 1 to 4 as the paper draws them, and the models of the rebuttal.
PAPER = {
    "1": {"BERT", "RoBERTa", "GPT-2", "T5"},
    "2": {"CharacterBERT", "CANINE-s", "CANINE-c", "MANTa-LM", "ByT5"},
    "3a": {"wav2vec 2.0", "HuBERT", "Whisper"},
    "3b": {"ViT", "BEiT", "MiT", "DeiT"},
    "4": {"ResNet-50", "EfficientNet", "CvT", "ConvNeXt", "VAN"},
}


@pytest.mark.parametrize("figure", PAPER)
def test_every_model_of_a_figure_is_there(figure: str) -> None:
    assert {entry.label for entry in catalogue(figure=figure)} == PAPER[figure]


def test_the_rebuttal_and_the_multiberts_are_there() -> None:
    rebuttal = {entry.label for entry in catalogue(figure="M1")}
    sizes = {f"Pythia {size}" for size in ("70m", "160m", "410m", "1b", "1.4b", "2.8b", "6.9b", "12b")}
    assert rebuttal == sizes | {"GPT-NeoX", "Falcon", "OPT", "CrystalCoder", "Amber"}
    assert len([entry for entry in catalogue() if entry.series == "multiberts"]) == 25


def test_entries_are_complete_and_their_names_unique() -> None:
    entries = catalogue()
    names = [name.lower() for entry in entries for name in (entry.id, entry.label, *entry.aliases)]
    assert len(names) == len(set(names))
    for entry in entries:
        assert re.fullmatch(r"[\w.-]+(/[\w.-]+)?", entry.id)
        assert entry.modality in ("text", "speech", "vision")
        assert entry.depth == sum(entry.layers.values()) >= 1
        assert entry.width >= 256
        assert entry.figures
        assert entry.data
        assert "{" not in entry.label + entry.data


def test_families_are_those_of_the_library_or_of_this_package() -> None:
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    from anisoscope.models.extra.register import register

    register()
    unknown = {entry.id for entry in catalogue() if entry.family not in CONFIG_MAPPING}
    assert unknown == {entry.id for entry in catalogue() if entry.remote_code} == {"LLM360/CrystalCoder"}


@pytest.mark.parametrize(
    ("family", "fields"),
    [
        ("bert", ("num_hidden_layers", "hidden_size")),
        ("roberta", ("num_hidden_layers", "hidden_size")),
        ("gpt2", ("n_layer", "n_embd")),
        ("wav2vec2", ("num_hidden_layers", "hidden_size")),
        ("hubert", ("num_hidden_layers", "hidden_size")),
        ("vit", ("num_hidden_layers", "hidden_size")),
        ("beit", ("num_hidden_layers", "hidden_size")),
        ("character_bert", ("num_hidden_layers", "hidden_size")),
    ],
)
def test_depth_and_width_agree_with_configs_whose_defaults_are_the_published_size(
    family: str, fields: tuple[str, str]
) -> None:
    from transformers import CONFIG_MAPPING

    from anisoscope.models.extra.register import register

    register()
    config = CONFIG_MAPPING[family]()
    for entry in catalogue():
        if entry.family == family:
            assert (entry.depth, entry.width) == tuple(getattr(config, field) for field in fields)


@pytest.mark.parametrize(
    ("family", "depths", "widths"),
    [
        ("segformer", "depths", "hidden_sizes"),
        ("resnet", "depths", "hidden_sizes"),
        ("cvt", "depth", "embed_dim"),
        ("convnext", "depths", "hidden_sizes"),
        ("van", "depths", "hidden_sizes"),
    ],
)
def test_stages_agree_with_configs_whose_defaults_are_the_published_size(family: str, depths: str, widths: str) -> None:
    from transformers import CONFIG_MAPPING

    from anisoscope.models.extra.register import register

    register()
    config = CONFIG_MAPPING[family]()
    entry = next(entry for entry in catalogue() if entry.family == family)
    assert list(entry.layers.values()) == list(getattr(config, depths))
    assert entry.width == getattr(config, widths)[-1]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("bert", "bert-base-uncased"),
        ("google-bert/bert-base-uncased", "bert-base-uncased"),
        ("canine-S", "google/canine-s"),
        ("wav2vec 2.0", "facebook/wav2vec2-base"),
        ("Pythia 1.4b", "EleutherAI/pythia-1.4b"),
        ("google/multiberts-seed_3-step_200k", "google/multiberts-seed_3"),
    ],
)
def test_lookup_by_id_alias_label_or_checkpoint(name: str, expected: str) -> None:
    assert lookup(name).id == expected


@pytest.mark.parametrize(
    ("misspelt", "meant"),
    [
        ("bert-base-uncassed", "bert-base-uncased"),
        ("facebook/wave2vec2-base", "facebook/wav2vec2-base"),
        ("EleutherAI/pythia-70mm", "EleutherAI/pythia-70m"),
        ("robertabase", "roberta-base"),
    ],
)
def test_a_misspelt_name_gets_a_suggestion(misspelt: str, meant: str) -> None:
    assert meant in suggest(misspelt)
    with pytest.raises(UsageError, match=re.escape(meant)):
        lookup(misspelt)


def test_a_name_like_none_gets_no_suggestion() -> None:
    assert suggest("zzzzzz") == []
    with pytest.raises(UsageError, match="anisoscope models"):
        lookup("zzzzzz")


def test_series_of_multiberts_vary_the_repository() -> None:
    steps = series("multiberts", seeds=[1, 0])
    assert len(steps) == 2 * 29
    assert steps[0].model == "google/multiberts-seed_0-step_0k"
    assert steps[28].model == "google/multiberts-seed_0-step_2000k"
    assert [checkpoint.step for checkpoint in steps[:29]] == sorted({checkpoint.step for checkpoint in steps})
    assert {checkpoint.revision for checkpoint in steps} == {None}
    assert len(series("google/multiberts-seed_4")) == 29
    with pytest.raises(UsageError, match="seeds 0 to 4"):
        series("multiberts", seeds=[5])


def test_an_unknown_series_is_told_of_the_embedded_one_and_of_folders() -> None:
    with pytest.raises(UsageError, match=r"expected: embedded(?s:.*)to do: +name a folder of checkpoint-"):
        series("nothing")


def test_series_of_pythia_vary_the_revision() -> None:
    steps = series("EleutherAI/pythia-160m")
    assert len(steps) == 154
    assert [checkpoint.revision for checkpoint in steps[:4]] == ["step0", "step1", "step2", "step4"]
    assert steps[-1].revision == "step143000"
    assert {checkpoint.model for checkpoint in series("pythia-160m-deduped")} == {"EleutherAI/pythia-160m-deduped"}


def test_the_steps_of_the_rebuttal() -> None:
    """The grid of the published code: int(i * 143 / 20) thousand."""
    steps = [checkpoint.step for checkpoint in series("pythia-70m", steps="paper")]
    assert steps == [0] + [int(i * 143 / 20) * 1000 for i in range(1, 21)]
    assert len(steps) == 21
    assert set(steps) <= {checkpoint.step for checkpoint in series("pythia-70m")}


def test_steps_can_be_chosen_and_must_exist() -> None:
    assert [c.step for c in series("pythia-70m", steps=[512, 0, 1000, 512])] == [0, 512, 1000]
    with pytest.raises(UsageError, match=r"1500(.|\n)*nearest: \[1000\]"):
        series("pythia-70m", steps=[1500])
    with pytest.raises(UsageError, match=r"all \| paper"):
        series("pythia-70m", steps="some")
    with pytest.raises(UsageError, match="multiberts"):
        series("gpt2")


def test_at_hand_looks_in_the_mirror_and_in_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("ANISOSCOPE_MODELS", raising=False)
    gpt2, bert = lookup("GPT-2"), lookup("BERT")
    assert at_hand(gpt2, tmp_path) is None

    mirrored = tmp_path / "openai-community" / "gpt2"
    mirrored.mkdir(parents=True)
    (mirrored / "config.json").write_text("{}")
    assert at_hand(gpt2, tmp_path) is None  # a config is not a model
    (mirrored / "model.safetensors").touch()
    assert at_hand(gpt2, tmp_path) == mirrored

    repository = tmp_path / "cache" / "models--bert-base-uncased"
    snapshot = repository / "snapshots" / "0123abcd"
    snapshot.mkdir(parents=True)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("0123abcd")
    (snapshot / "config.json").write_text("{}")
    assert at_hand(bert) is None
    (snapshot / "pytorch_model.bin").touch()
    assert at_hand(bert) == snapshot


def test_a_checkpoint_of_a_series_is_at_hand_at_its_own_revision(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "EleutherAI" / "pythia-70m@step1000"
    folder.mkdir(parents=True)
    (folder / "model.safetensors").touch()
    there = [checkpoint.step for checkpoint in series("pythia-70m") if at_hand(checkpoint, tmp_path)]
    assert there == [1000]
    assert at_hand(lookup("pythia-70m"), tmp_path) is None


def test_nothing_heavy_is_imported() -> None:
    code = (
        "import sys; from anisoscope.models.catalogue import at_hand, catalogue; [at_hand(e) for e in catalogue()];"
        "print([name for name in ('torch', 'transformers', 'numpy', 'pyarrow') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
