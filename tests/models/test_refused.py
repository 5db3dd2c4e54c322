"""Every way in which opening a model must be refused, with an error that says what to do."""

from __future__ import annotations

import json
import os
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import PreTrainedModel

import zoo
from anisoscope.errors import ModelError, UsageError
from anisoscope.models.open import open_model


def as_pickle(folder: Path, **extra: Any) -> Path:
    """Replace the safetensors of a checkpoint by a pickle."""
    weights = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    torch.save(weights | extra, folder / "pytorch_model.bin")
    return folder


def test_a_config_without_weights(copy: Path) -> None:
    (copy / "model.safetensors").unlink()
    with pytest.raises(ModelError, match="no weights"):
        open_model(copy)
    (copy / "tf_model.h5").write_bytes(b"x")
    with pytest.raises(ModelError, match="not PyTorch's"):
        open_model(copy)


@pytest.mark.parametrize("whole", [True, False])
def test_an_adapter_is_not_a_model(whole: bool, copy: Path) -> None:
    (copy / "adapter_config.json").write_text('{"peft_type": "LORA", "base_model_name_or_path": "bert-base-uncased"}')
    if not whole:
        for name in ("config.json", "model.safetensors"):
            (copy / name).unlink()
    with pytest.raises(ModelError, match=r"holds an adapter(.|\n)*merge it"):
        open_model(copy)


def test_a_checkpoint_without_tokenizer_files(copy: Path) -> None:
    for file in copy.glob("token*"):
        file.unlink()
    opened = open_model(copy)  # its data may be token ids
    with pytest.raises(ModelError, match="tokenizer does not fit"):
        opened.processor("a text")
    assert open_model(copy, processor=zoo.processor("bert")).limit == 128


@pytest.mark.parametrize(("name", "kind"), [("vit", "image processor"), ("wav2vec2", "feature extractor")])
def test_a_checkpoint_without_preprocessor(name: str, kind: str, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=f"no usable {kind}"):
        open_model(zoo.save(name, tmp_path, with_processor=False))


@pytest.mark.parametrize("keep", [0, 5, 4000, -1])
@pytest.mark.parametrize("form", ["safetensors", "pickle"])
def test_truncated_weights(copy: Path, keep: int, form: str) -> None:
    file = copy / "model.safetensors" if form == "safetensors" else as_pickle(copy) / "pytorch_model.bin"
    os.truncate(file, keep if keep >= 0 else file.stat().st_size - 1)
    with pytest.raises(ModelError, match=r"damaged or incomplete(.|\n)*download it again"):
        open_model(copy)


@pytest.mark.parametrize("where", ["../", "/tmp/", "sub/"])
def test_an_index_that_leads_out_of_its_folder(where: str, copy: Path) -> None:
    """Such weights would be read, and a change of them would go unnoticed: fingerprints are of the folder."""
    weights = load_file(copy / "model.safetensors")
    (copy / "model.safetensors").rename(copy.parent / "elsewhere.safetensors")
    index = {"metadata": {}, "weight_map": dict.fromkeys(weights, f"{where}elsewhere.safetensors")}
    (copy / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ModelError, match="does not lie beside it"):
        open_model(copy)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"weight_map": [1]}', '{"weight_map": {"a": 1}}'])
def test_an_index_that_is_none(text: str, copy: Path) -> None:
    (copy / "model.safetensors").unlink()
    (copy / "model.safetensors.index.json").write_text(text)
    with pytest.raises(ModelError, match="not an index"):
        open_model(copy)


def test_a_pointer_in_the_place_of_the_weights(copy: Path) -> None:
    (copy / "model.safetensors").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n")
    with pytest.raises(ModelError, match="Git LFS pointer"):
        open_model(copy)


class Malice:
    """A pickle that makes a file when it is read."""

    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.trace),)


def test_a_malicious_pickle_is_not_run(copy: Path, tmp_path: Path) -> None:
    trace = tmp_path / "ran"
    as_pickle(copy, extra=Malice(trace))
    with pytest.raises(ModelError, match="more than tensors"):
        open_model(copy)
    assert not trace.exists()
    (copy / "pytorch_model.bin").write_bytes(pickle.dumps(Malice(trace)))
    with pytest.raises(ModelError, match=r"more than tensors|damaged"):
        open_model(copy)
    assert not trace.exists()
    pickle.loads(pickle.dumps(Malice(trace)))
    assert trace.exists()  # so the pickle does what the test fears


def test_missing_weights_are_not_made_up(copy: Path) -> None:
    weights = load_file(copy / "model.safetensors")
    del weights["bert.encoder.layer.1.attention.self.query.weight"]
    save_file(weights, copy / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelError, match=r"would be random(.|\n)*layer\.1\.attention\.self\.query\.weight"):
        open_model(copy)


def test_a_config_that_counts_fewer_blocks_is_refused(copy: Path) -> None:
    zoo.edit_config(copy, num_hidden_layers=2)
    with pytest.raises(ModelError, match="blocks that its config does not count"):
        open_model(copy)


def test_a_config_with_other_shapes_is_refused(copy: Path) -> None:
    zoo.edit_config(copy, intermediate_size=65)
    with pytest.raises(ModelError, match="shapes"):
        open_model(copy)


def test_values_that_are_not_finite_are_noted(copy: Path) -> None:
    weights = load_file(copy / "model.safetensors")
    weights["bert.encoder.layer.0.output.dense.bias"][3] = float("nan")
    save_file(weights, copy / "model.safetensors", metadata={"format": "pt"})
    assert "not finite" in " ".join(open_model(copy).notes)


def test_remote_code_needs_leave(copy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The code of the repository runs only when it was allowed to."""
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules"))
    trace = tmp_path / "imported"
    (copy / "own.py").write_text(
        f"import pathlib\npathlib.Path({str(trace)!r}).touch()\n"
        "from transformers import BertConfig, BertModel\n"
        "class OwnConfig(BertConfig):\n    model_type = 'own'\n"
        "class OwnModel(BertModel):\n    config_class = OwnConfig\n"
    )
    zoo.edit_config(copy, model_type="own", auto_map={"AutoConfig": "own.OwnConfig", "AutoModel": "own.OwnModel"})
    with pytest.raises(ModelError, match=r"code of its own repository(.|\n)*trust-remote-code"):
        open_model(copy)
    assert not trace.exists()
    opened = open_model(copy, trust_remote_code=True)
    assert trace.exists()
    assert (opened.family, opened.modality) == ("own", "text")


@pytest.mark.parametrize("kind", ["no_such_architecture", None])
def test_an_unknown_architecture(copy: Path, kind: str | None) -> None:
    zoo.edit_config(copy, model_type=kind)
    with pytest.raises(ModelError, match="architecture"):
        open_model(copy)


def test_a_config_that_is_not_json(copy: Path) -> None:
    (copy / "config.json").write_text("{")
    with pytest.raises(ModelError, match="not JSON"):
        open_model(copy)


@pytest.mark.parametrize("options", [{"dtype": "float31"}, {"device": "abacus"}, {"modality": "smell"}])
def test_options_that_do_not_exist(bert: Path, options: dict[str, str]) -> None:
    with pytest.raises(UsageError):
        open_model(bert, **options)


@pytest.mark.parametrize(
    "config", ["[]", "3", "null", '"bert"', '{"model_type": ["bert"]}', "{}", "{", "", "[" * 100_000]
)
def test_a_config_that_is_not_an_object_of_a_model(copy: Path, config: str) -> None:
    (copy / "config.json").write_text(config)
    for trust in (False, True):
        with pytest.raises(ModelError, match=r"config|architecture"):
            open_model(copy, trust_remote_code=trust)


def test_places_of_code_that_are_not_a_table(copy: Path) -> None:
    zoo.edit_config(copy, model_type="own", auto_map="own.py")
    with pytest.raises(ModelError, match=r"code of its own repository(.|\n)*own.py"):
        open_model(copy)


@pytest.mark.parametrize(
    "name", ["x" * 5000, "/" + "x" * 5000, "owner/" + "x" * 300, "a\0b", "/tmp/a\0b", "./a\nb", " ", "a/" * 3000 + "b"]
)
def test_names_that_nothing_can_have(name: str) -> None:
    for where in (name, Path(name)):
        with pytest.raises((UsageError, ModelError)) as refused:
            open_model(where)
        assert len(str(refused.value)) < 500


def test_a_folder_with_nothing_in_it(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"no model in this folder(.|\n)*config.json"):
        open_model(tmp_path)


def test_a_config_without_sizes_is_refused_before_a_large_model_is_made(
    copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps({name: config[name] for name in ("model_type", "architectures")}))
    monkeypatch.setattr(PreTrainedModel, "from_pretrained", lambda *_, **__: pytest.fail("the model was made"))
    with pytest.raises(ModelError, match=r"do not have the shapes(.|\n)*restore the config"):
        open_model(copy)


def test_a_config_of_more_blocks_than_tensors_is_refused_before_they_are_made(copy: Path) -> None:
    zoo.edit_config(copy, num_hidden_layers=10**9)
    with pytest.raises(ModelError, match=r"do not have the shapes(.|\n)*1,000,000,000 blocks"):
        open_model(copy)


def test_a_pipe_is_not_a_model(tmp_path: Path) -> None:
    for name in ("pipe", "pipe.gguf"):
        os.mkfifo(tmp_path / name)
        with pytest.raises(ModelError, match="not a model"):
            open_model(tmp_path / name)
