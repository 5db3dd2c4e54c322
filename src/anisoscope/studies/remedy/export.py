"""A remedy in the formats that other programs read. Each computes y = x·W + b with b = −μ·W, then y/‖y‖.

| to | what is written |
|---|---|
| `sentence-transformers` | a copy of the model's folder with a Dense and a Normalize part appended |
| `faiss` | an empty `IndexPreTransform`: LinearTransform and NormalizationTransform before an `IndexFlatIP` |
| `onnx` | a graph from `x` (n, d) to `y` (n, k) |
| `numpy` | a Python file with three lines of numpy, and its numbers beside it |

Everything is float32: where ‖μ‖ is far larger than the spread, `remedy apply` subtracts first and is more exact.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from anisoscope.errors import MissingExtra, UsageError
from anisoscope.runs.writing import atomic_folder, guarded
from anisoscope.studies.remedy.estimator import Remedy

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from anisoscope.models.locate import Place

To = Literal["sentence-transformers", "faiss", "onnx", "numpy"]
TARGETS = ("sentence-transformers", "faiss", "onnx", "numpy")
_DENSE = "sentence_transformers.models.Dense"
_NORMALIZE = "sentence_transformers.models.Normalize"
_SNIPPET = '''"""Repaired vectors: y = (x - mean) @ matrix, then y / |y|; {method}, {d} to {k} dimensions.

Written by anisoscope.
"""

from pathlib import Path

import numpy as np

FITTED = np.load(Path(__file__).with_suffix(".npz"))


def repair(x):
    y = (np.asarray(x) - FITTED["mean"]) @ FITTED["matrix"]
    return y / np.maximum(np.linalg.norm(y, axis=1, keepdims=True), 1e-12)
'''


def export(
    remedy: Remedy,
    to: To,
    out: Path,
    *,
    model: str | None = None,
    models_dir: str | None = None,
    inputs: Sequence[Path] = (),
    force: bool = False,
) -> list[Path]:
    """Write the remedy to `out` and return what was written. `model`: the model whose folder is copied, where one is
    needed; `inputs`: what may not be overwritten."""
    if to == "sentence-transformers":
        own = _own_model(remedy) if model is None else model
        return [_sentence_transformers(remedy, out, own, models_dir, fitted=model is None)]
    if to == "numpy":
        return _numpy(remedy, out.with_suffix(".py"), inputs, force)
    with guarded(out, inputs=inputs, force=force) as partial:
        (_faiss if to == "faiss" else _onnx)(remedy, partial)
    return [out]


def linear(remedy: Remedy) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """W (d, k) and b (k,) in single precision; the offset is computed in double."""
    made = remedy.fitted()
    return made.full.astype(np.float32), -(made.mean @ made.full).astype(np.float32)


def _numpy(remedy: Remedy, out: Path, inputs: Sequence[Path], force: bool) -> list[Path]:
    made, numbers = remedy.fitted(), out.with_suffix(".npz")
    with guarded(numbers, inputs=inputs, force=force) as partial, partial.open("wb") as stream:
        np.savez(stream, mean=made.mean, matrix=made.full)
    with guarded(out, inputs=inputs, force=force) as partial:
        d, k = made.dims
        text = _SNIPPET.format(method=remedy.about.get("method", remedy.method), d=d, k=k)
        partial.write_text(text, encoding="utf-8")
    return [out, numbers]


def _faiss(remedy: Remedy, path: Path) -> None:
    try:
        import faiss
    except ImportError as error:
        raise MissingExtra("faiss", needed_for="--to faiss", extra="embeddings") from error
    weight, bias = linear(remedy)
    d, k = weight.shape
    turn: Any = faiss.LinearTransform(d, k, True)
    faiss.copy_array_to_vector(np.ascontiguousarray(weight.T).ravel(), turn.A)
    faiss.copy_array_to_vector(bias, turn.b)
    turn.is_trained = True
    index: Any = faiss.IndexPreTransform(faiss.IndexFlatIP(k))
    index.prepend_transform(faiss.NormalizationTransform(k, 2.0))
    index.prepend_transform(turn)
    faiss.write_index(index, str(path))


def _onnx(remedy: Remedy, path: Path) -> None:
    try:
        import onnx
        from onnx import TensorProto, helper, numpy_helper
    except ImportError as error:
        raise MissingExtra("onnx", needed_for="--to onnx", extra="embeddings") from error
    weight, bias = linear(remedy)
    constants = {"matrix": weight, "bias": bias, "tiny": np.float32(1e-12), "axes": np.array([1])}
    nodes = [
        helper.make_node("Gemm", ["x", "matrix", "bias"], ["turned"]),
        helper.make_node("ReduceL2", ["turned", "axes"], ["norm"], keepdims=1),
        helper.make_node("Max", ["norm", "tiny"], ["safe"]),
        helper.make_node("Div", ["turned", "safe"], ["y"]),
    ]
    ends = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", size])
        for name, size in zip("xy", weight.shape, strict=True)
    ]
    stored = [numpy_helper.from_array(np.asarray(array), name) for name, array in constants.items()]
    graph = helper.make_graph(nodes, "remedy", ends[:1], ends[1:], stored)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    onnx.checker.check_model(made)
    onnx.save(made, str(path))


def _own_model(remedy: Remedy) -> str:
    from anisoscope.studies.folds import names_model

    files = remedy.about.get("files") or []
    if files and names_model(files):
        return str(files[0])
    raise UsageError("the remedy was fitted on vectors, not on a model", do="name the model: --model FOLDER")


def _check_unchanged(remedy: Remedy, place: Place) -> None:
    """Refuse a model that is no longer the one whose vectors the remedy was fitted on, where that is known."""
    from anisoscope.models.fingerprint import unchanged
    from anisoscope.runs.store import open_run

    folder = remedy.about.get("folder")
    records = open_run(folder).manifest["inputs"].values() if folder is not None else ()
    for record in records:
        if record["kind"] == "model" and (changed := unchanged(record.get("files") or {}, place)):
            do = "fit the remedy anew, or --model to take this model all the same"
            got = ", ".join(changed[:3])
            raise UsageError("the model changed since the remedy was fitted", where=place.name, got=got, do=do)


def _sentence_transformers(remedy: Remedy, out: Path, model: str, models_dir: str | None, *, fitted: bool) -> Path:
    """Copy the folder and append two parts; nothing of the library is needed for that."""
    from safetensors.numpy import save_file

    from anisoscope.models.hub import fetch
    from anisoscope.models.locate import listed_modules, locate

    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UsageError("the folder is not empty", where=out, do="choose another --out")
    place = locate(model, models_dir=models_dir)
    folder = place.path or fetch(place.name)
    if fitted:
        _check_unchanged(remedy, place)
    parts = listed_modules(folder)
    if not parts:
        raise UsageError(
            "this is not a sentence-transformers model",
            where=folder,
            expected="modules.json",
            do="save it with sentence-transformers first, or export to another format",
        )
    weight, bias = linear(remedy)
    number = len(parts)
    names = [f"{number}_Dense", f"{number + 1}_Normalize"]
    config = {"in_features": len(weight), "out_features": len(bias), "bias": True}
    config["activation_function"] = "torch.nn.modules.linear.Identity"
    kinds = zip(names, (_DENSE, _NORMALIZE), strict=True)
    parts += [{"idx": number + k, "name": str(number + k), "path": p, "type": t} for k, (p, t) in enumerate(kinds)]
    with atomic_folder(out) as made:
        shutil.copytree(folder, made, dirs_exist_ok=True)
        for name in names:
            (made / name).mkdir()
        dense = made / names[0]
        save_file({"linear.weight": np.ascontiguousarray(weight.T), "linear.bias": bias}, dense / "model.safetensors")
        (dense / "config.json").write_text(json.dumps(config, indent=2))
        (made / "modules.json").write_text(json.dumps(parts, indent=2))
    return out
