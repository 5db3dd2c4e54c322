"""Every reader as a function of bytes. Only `anisoscope.errors` may come out; numbers that come out must make sense.

`TARGETS[name].try_one(data)` raises whatever is a finding. Containers with checksums or lengths of their own (npz,
safetensors, manifests) also have a target that wraps the bytes properly, so that mutations reach what is inside.
"""

from __future__ import annotations

import atexit
import hashlib
import io
import json
import os
import shutil
import struct
import sys
import warnings
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from anisoscope.errors import AnisoscopeError
from fuzz import command_lines, seeds

ROOM = Path(os.environ.get("TMPDIR", "/dev/shm" if os.path.isdir("/dev/shm") else "/tmp")) / f"fuzz-{os.getpid()}"

atexit.register(shutil.rmtree, ROOM, ignore_errors=True)


@dataclass(frozen=True)
class Target:
    """What is done with the bytes, and examples of them that are whole."""

    read: Callable[[bytes], None]
    seeds: list[bytes]
    share: float = 1.0  # of the inputs, relative to the others

    def try_one(self, data: bytes) -> bool:
        """Whether the bytes were accepted; raises what is not an error of ours."""
        try:
            with warnings.catch_warnings(), _hushed():
                warnings.simplefilter("ignore")
                self.read(data)
        except AnisoscopeError as error:
            words = str(error)
        else:
            return True
        assert words.strip(), "an error without words"
        return False


@contextmanager
def _hushed() -> Iterator[None]:
    with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
        yield


def _file(name: str, data: bytes) -> Path:
    ROOM.mkdir(exist_ok=True)
    (ROOM / name).write_bytes(data)
    return ROOM / name


# -- vectors -----------------------------------------------------------------------------------------------------------


def _vectors(suffix: str) -> Callable[[bytes], None]:
    def read(data: bytes) -> None:
        from anisoscope.inputs.vectors.source import open_vectors

        path, refusals = _file(f"x{suffix}", data), []
        for options in ({}, {"column": "v", "group": "g"}):
            try:
                source = open_vectors(path, **options)
                _check_blocks(source, list(source.blocks(5)), grouped=bool(options))
            except AnisoscopeError as error:
                refusals.append(error)
        if len(refusals) == 2:
            raise refusals[0]

    return read


def _check_blocks(source: Any, blocks: list[Any], *, grouped: bool) -> None:
    rows = sum(len(block.x) for block in blocks)
    assert all(block.x.ndim == 2 and block.x.shape[1] == source.dim for block in blocks)
    assert all(block.x.dtype in (np.float32, np.float64) for block in blocks)
    assert source.rows is None or source.rows == rows, (source.rows, rows)
    assert [block.start for block in blocks] == [*np.cumsum([0, *(len(b.x) for b in blocks)])[:-1]]
    assert not grouped or all(block.keys is not None and len(block.keys) == len(block.x) for block in blocks)


def _in_npz(data: bytes) -> None:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        archive.writestr("v.npy", data)
    _vectors(".npz")(stream.getvalue())


def _in_safetensors(data: bytes) -> None:
    """The bytes as header, before the data of the seed."""
    _vectors(".safetensors")(struct.pack("<Q", len(data)) + data + bytes(96))


# -- texts, sound, pictures ---------------------------------------------------------------------------------------


def _source(name: str, modality: str) -> Callable[[bytes], None]:
    def read(data: bytes) -> None:
        from anisoscope.inputs.sources import open_source

        for item in open_source(_file(name, data), modality):  # pyright: ignore[reportArgumentType]
            seeds.check_item(item)

    return read


# -- plans, runs, states, models -----------------------------------------------------------------------------------


def _plan(data: bytes) -> None:
    from anisoscope.runs.perform import plan_of

    plan_of(_file("run.toml", data))


def _recipe(data: bytes) -> None:
    from anisoscope.training.recipe import Recipe

    Recipe.read(_file("recipe.toml", data)).grid()


def _series(data: bytes) -> None:
    from anisoscope.models.checkpoints import open_series

    open_series(str(_file("series.toml", data)))


def _manifest(data: bytes) -> None:
    """The manifest as it is, then with a checksum of its own that fits."""
    from anisoscope.report.terminal import tell
    from anisoscope.runs.measurement import Measurement
    from anisoscope.runs.store import open_run
    from anisoscope.runs.study import study_of

    folder = _run_folder()
    for content in (data, _signed(data)):
        (folder / "manifest.json").write_bytes(content)
        try:
            run = open_run(folder)
        except AnisoscopeError:
            continue
        tell(study_of(run), Measurement.of_run(run))


@cache
def _run_folder() -> Path:
    """A run of two rows."""
    from anisoscope.runs.store import write_run
    from anisoscope.runs.table import Row

    rows = [Row(site="vectors", metric=name, value=0.5, n=8) for name in ("mean_cosine", "resultant")]
    about = {"verdict": {"words": ["isotropic"], "numbers": [], "sentence": "s"}, "notes": ["n"]}
    write_run(ROOM / "run", command="vectors", settings={"files": ["x.npy"]}, rows=rows, **about)
    return ROOM / "run"


def _manifest_seeds() -> list[bytes]:
    """That of the run, without its checksum."""
    written = json.loads((_run_folder() / "manifest.json").read_text())
    return _dumped({name: value for name, value in written.items() if name != "sha256"})


def _signed(data: bytes) -> bytes:
    body = b'{"sha256": "' + b"0" * 64 + b'", ' + data.lstrip()[1:]
    return body.replace(b"0" * 64, hashlib.sha256(body).hexdigest().encode(), 1)


def _state(data: bytes) -> None:
    from anisoscope.runs.work.saved import find_saved

    folder = ROOM / "state"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "unit.json").write_bytes(data)
    (folder / "s").write_bytes(seeds.STATE)
    for saved in find_saved(folder, {"model": "a"}):
        saved.load()


def _catalogue(data: bytes) -> None:
    from anisoscope.models import catalogue
    from anisoscope.models.checkpoints import open_series
    from anisoscope.models.locate import locate

    name, _, steps = data.decode("utf-8", "surrogateescape").partition("\n")
    catalogue.suggest(name)
    for ask in (lambda: catalogue.lookup(name), lambda: open_series(name, steps=steps or "all"), lambda: locate(name)):
        try:
            ask()
        except AnisoscopeError:
            continue


def _config(data: bytes) -> None:
    from anisoscope.models.open import open_model

    folder = _model_folder()
    (folder / "config.json").write_bytes(data)
    open_model(folder)


@cache
def _model_folder() -> Path:
    """The weights that the seed is the config of."""
    from transformers import GPT2Config, GPT2Model

    GPT2Model(GPT2Config(**json.loads(seeds.CONFIG))).save_pretrained(ROOM / "model")
    return ROOM / "model"


def _gguf(data: bytes) -> None:
    from anisoscope.models.open import open_model

    open_model(_file("x.gguf", data))


def _dumped(*values: Any) -> list[bytes]:
    return [json.dumps(value).encode() for value in values]


_HEAD = b'{"v":{"dtype":"F32","shape":[8,3],"data_offsets":[0,96]}}'
_NAMES = [b"bert-base-uncased\npaper", b"EleutherAI/pythia-70m\n0,1000,2000", b"multiberts\n21", b"gpt2@main\nlog"]
TARGETS: dict[str, Target] = {
    **{suffix[1:]: Target(_vectors(suffix), content) for suffix, content in seeds.VECTORS.items()},
    "npz member": Target(_in_npz, seeds.VECTORS[".npy"]),
    "safetensors header": Target(_in_safetensors, [_HEAD]),
    **{name: Target(_source(name, kind), content) for name, (kind, content) in seeds.SOURCES.items()},
    "run.toml": Target(_plan, [text.encode() for text in seeds.PLANS]),
    "recipe.toml": Target(_recipe, [seeds.RECIPE.encode()]),
    "series.toml": Target(_series, [seeds.SERIES.encode()]),
    "manifest": Target(_manifest, _manifest_seeds()),
    "state": Target(_state, _dumped(seeds.HEADER)),
    "catalogue": Target(_catalogue, _NAMES, 0.2),
    "command line": Target(command_lines.read, command_lines.SEEDS, 0.3),
    "config.json": Target(_config, [seeds.CONFIG.encode()], 0.2),
    "gguf": Target(_gguf, [seeds.gguf()], 0.2),
}

if __name__ == "__main__":  # one file, to see what a finding is: python tests/fuzz/targets.py TARGET FILE
    TARGETS[sys.argv[1]].try_one(Path(sys.argv[2]).read_bytes())
