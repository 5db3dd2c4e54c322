"""Open a model of any modality, by whatever name it has: a hub id, a folder, a GGUF file, a module in memory.

    opened = open_model("EleutherAI/pythia-70m", revision="step1000")
    opened = open_model("./checkpoint-500", head=True)
    opened = open_model("SmolLM2-135M-Instruct.Q4_1.gguf")
    opened = open_model("openai/clip-vit-base-patch32", tower="vision")
    opened = open_model(module, processor=tokenizer)

What comes back is in eval mode, in float32 unless asked otherwise, and holds nothing that was not in the checkpoint
(see `loading`). A model of the hub is looked for in the mirror first, then fetched, and without network taken from the
cache.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from hashlib import sha256
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from anisoscope.errors import ModelError, UsageError
from anisoscope.models import gguf
from anisoscope.models.devices import check_device, parse_device_map
from anisoscope.models.fingerprint import Fingerprinting, ModelFiles, module_fingerprint, start_fingerprint
from anisoscope.models.hub import fetch, first_line
from anisoscope.models.loading import check_folder, load_weights, quiet
from anisoscope.models.locate import Place, locate, read_json, transformer_folder
from anisoscope.models.modality import TOWERS, body_class, head_class, is_composite, modality_of, tower_config
from anisoscope.models.processors import longest_input, open_processor, open_tokenizer, tokenizer_folder

if TYPE_CHECKING:
    import torch
    from torch import nn

    from anisoscope.models.encoders import Encoder

# A field of a config, and what completes a model whose config has it. By name: those parts stand above this one.
COMPLETED_BY = {
    "anisoscope_attention": ("anisoscope.models.attention_kinds", "restore"),
    "anisoscope_without_final_norm": ("anisoscope.models.final_norm", "restore"),
}
DTYPES = ("float32", "float64", "bfloat16", "float16")


@dataclass(frozen=True)
class OpenModel:
    """A model ready to be measured.

    - `processor`: tokenizer, image processor or feature extractor; for Whisper both parts in one.
    - `family`: the `model_type` of its config.
    - `limit`: the longest input in tokens, None where there is none.
    - `encoder`: what makes one vector of a text, where that was asked for and there is such a thing.
    - `notes`: what the reader of a measurement should know, in words.
    - `own_code`: whether the Python files of its repository were allowed to run; None where it asks for none.
    """

    module: nn.Module
    processor: Any
    modality: str
    name: str
    revision: str | None
    family: str
    limit: int | None
    notes: tuple[str, ...] = ()
    encoder: Encoder | None = field(default=None, repr=False, compare=False)
    reading: Fingerprinting | None = field(default=None, repr=False, compare=False)
    own_code: bool | None = None

    @property
    def files(self) -> ModelFiles | None:
        """The files that the model came from, with their digests; None for a module in memory."""
        return None if self.reading is None else self.reading.result()

    @property
    def fingerprint(self) -> str:
        """One digest of the model: of its files and whose code runs it, or of the weights of a module in memory."""
        files = self.files
        if files is None:
            return module_fingerprint(self.module)
        return sha256(f"{files.digest} own code".encode()).hexdigest() if self.own_code else files.digest


def open_model(
    where: str | Path | nn.Module,
    *,
    revision: str | None = None,
    modality: str | None = None,
    tower: str | None = None,
    dtype: str = "float32",
    device: str = "cpu",
    device_map: str | None = None,
    trust_remote_code: bool = False,
    models_dir: str | Path | None = None,
    processor: Any = None,
    tokenizer: str | Path | type[bytes] | None = None,
    head: bool = False,
    pool: str = "none",
    prompt: str | None = None,
) -> OpenModel:
    """Open `where`.

    - `revision`: a branch, tag or commit of a hub model (a folder has none).
    - `modality`: overrides what the model's class says; `tower`: `text` or `vision` of a composite model (CLIP).
    - `device_map`: spread the model over devices: `auto`, or modules and devices as JSON (see `devices`).
    - `trust_remote_code`: allow the Python files of the model's repository to run.
    - `models_dir`: a mirror laid out as `owner/name[@revision]`, looked in first.
    - `processor`: a tokenizer, image processor or feature extractor in memory, instead of the one beside the model;
    - `tokenizer`: where the tokenizer is if not beside the model: a folder, a hub id, or `bytes` (one token per byte).
      A text model without any opens too, for data that is token ids.
    - `head`: open the class with the language-model head (masked, causal or sequence to sequence).
    - `pool`: how one vector is made of a text: `auto` is what the folder's `modules.json` says, if it has one.
    - `prompt`: what leads every text that becomes a vector: a prompt of the model by name, or the words themselves.
    """
    os.environ.setdefault("DISABLE_SAFETENSORS_CONVERSION", "1")
    precision, device, spread = _precision(dtype), check_device(device), parse_device_map(device_map)
    if not isinstance(where, (str, Path)):
        return _led(_adopt(where, _given(processor, tokenizer, where), modality, tower, pool=pool), prompt)
    if processor is not None and tokenizer is not None:
        raise UsageError("a processor and a place of a tokenizer", got="both", do="choose one of them")
    place = locate(where, revision=revision, models_dir=models_dir)
    with quiet(), _reading(place):
        folder, options = _folder(place, trust_remote_code)
        body = transformer_folder(folder)
        config, tower = _one_tower(_config(body, options), tower, modality, place.name)
        beside = tokenizer_folder(tokenizer, models_dir=models_dir)
        with _unchanged(place, folder, beside) as reading:
            loaded = load_weights(_opener(config, head), body, config=config, dtype=precision, **options, **spread)
            module = _completed(loaded, config, body)
            kind = modality_of(module, override=modality)
            if tokenizer is not None:
                processor = open_tokenizer(beside, module, trust_remote_code=trust_remote_code)
            elif processor is None:
                processor = open_processor(body, modality=kind, config=config, **options)
    about = {"revision": place.revision, "notes": _notes(place, folder, module), "reading": reading}
    about["own_code"] = trust_remote_code if _asks_for_code(body) else None
    name = place.name if tower is None else f"{place.name}:{tower}"
    opened = _opened(module if spread else module.to(device), processor, kind, name, config.model_type, **about)
    if pool == "auto" and tower is not None:
        return _led(_tower_encoding(opened, tower, body), prompt)
    return _led(_encoding(opened, None if place.kind == "gguf" else folder, pool), prompt)


def _opened(module: Any, processor: Any, modality: str, name: str, family: str, **about: Any) -> OpenModel:
    limit = longest_input(module) if modality == "text" else None
    return OpenModel(module, processor, modality, name, about.pop("revision", None), family, limit, **about)


def _one_tower(config: Any, tower: str | None, modality: str | None, name: str) -> tuple[Any, str | None]:
    """The config of what is opened, and the name of the tower that it is of a composite model."""
    if is_composite(body_class(config)):
        tower = tower or modality
        return tower_config(config, tower), tower
    if tower is not None:
        raise UsageError("this model has one tower", where=name, got=f"tower={tower!r}", do="leave it out")
    return config, None


def _tower_encoding(model: OpenModel, tower: str, whole: Path | nn.Module) -> OpenModel:
    """One tower of a model with the projection of its embedding, from the files or the module of the whole model."""
    from anisoscope.models.encoders import PROJECTIONS, read_projection, tower_encoder

    if not isinstance(whole, Path):
        projection = getattr(whole, PROJECTIONS.get(tower, ("", ""))[1], None)
    else:
        projection = read_projection(whole, tower, dtype=_dtype_of(model.module))
    return replace(model, encoder=tower_encoder(tower, projection))


def _led(model: OpenModel, prompt: str | None) -> OpenModel:
    """The model whose texts are led by a prompt; refuses one that nothing would read."""
    if model.modality == "text" and model.encoder is not None:
        from anisoscope.models.encoders import with_prompt

        tokenizer = getattr(model.processor, "tokenizer", model.processor)
        return replace(model, encoder=with_prompt(model.encoder, prompt, tokenizer))
    if prompt:
        do = "--pool mean, or another way of pooling" if model.modality == "text" else "leave it out"
        what = "a prompt leads texts of which one vector is made, and this model makes none"
        raise UsageError(what, where=model.name, got=prompt, do=do)
    return model


def _encoding(model: OpenModel, folder: Path | None, pool: str) -> OpenModel:
    """The model with what makes one vector of a text, as its folder says or as it was asked for."""
    if pool == "none" or (pool == "auto" and folder is None):
        return model
    from anisoscope.models.encoders import UnknownPart, pooling_encoder, read_encoder, stated_length

    if pool != "auto" and model.modality != "text":
        raise UsageError("only the states of a text are pooled", where=model.name, got=f"a model of {model.modality}")
    try:
        own = None if folder is None else read_encoder(folder, dtype=_dtype_of(model.module))
    except UnknownPart as problem:
        if pool == "auto":
            return replace(model, notes=(*model.notes, f"no embedding: {problem}"))
        own = None
    encoder = own if pool == "auto" else pooling_encoder(pool)
    if encoder is None or model.modality != "text":
        return model
    if own is not None:  # prompts and length are the model's, whichever pool is asked for
        limit = own.limit or stated_length(getattr(model.processor, "tokenizer", model.processor))
        encoder = replace(own, pooling=encoder.pooling, layers=encoder.layers, limit=limit)
    return replace(model, encoder=encoder)


def _dtype_of(module: nn.Module) -> torch.dtype:
    """The precision of a module's weights, float32 if it has none."""
    import torch

    return next((weight.dtype for weight in module.parameters() if weight.is_floating_point()), torch.float32)


@contextmanager
def _unchanged(place: Place, folder: Path, tokenizer: Path | None) -> Iterator[Fingerprinting]:
    """Hash the files while they are loaded; an error if one of them changes meanwhile."""
    local = place if place.kind == "gguf" else Place("folder", place.name, path=folder)
    reading = start_fingerprint(local, tokenizer=tokenizer)
    try:
        yield reading
    except BaseException:
        reading.stop()
        raise
    reading.check()


def _reading(place: Place) -> AbstractContextManager[None]:
    if place.kind != "gguf":
        return nullcontext()
    assert place.path is not None
    gguf.check_file(place.path)
    return gguf.read_once()


def _folder(place: Place, trust_remote_code: bool) -> tuple[Path, dict[str, Any]]:
    """The folder with the model's files, and the arguments that transformers needs for them."""
    from anisoscope.models.extra.register import register

    options: dict[str, Any] = {"trust_remote_code": trust_remote_code}
    if place.kind == "gguf":
        assert place.path is not None
        return place.path.parent, {**options, "gguf_file": place.path.name}
    folder = place.path or fetch(place.name, revision=place.revision, code=trust_remote_code)
    body = transformer_folder(folder)
    check_folder(body)
    register()
    if not trust_remote_code:
        _refuse_code(body)
    return folder, options


def _asks_for_code(folder: Path) -> bool:
    """Whether a config of the folder names Python files: if allowed to run, they replace the library's own."""
    return any(b'"auto_map"' in file.read_bytes() for file in folder.glob("*config.json"))


def _refuse_code(folder: Path) -> None:
    """A model whose architecture transformers does not have would run Python files of its repository."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    written = read_json(folder / "config.json")
    if not isinstance(written, dict):
        raise ModelError(
            "config.json is not the config of a model",
            where=folder,
            got=f"a {type(written).__name__}",
            expected='a JSON object with "model_type"',
            do="restore the config.json that belongs to these weights",
        )
    kind = written.get("model_type")
    if isinstance(kind, str) and kind in CONFIG_MAPPING:
        return
    if "auto_map" in written:
        raise ModelError(
            "this model runs code of its own repository",
            where=folder,
            got=f"model_type {kind!r}, {_some_code(written['auto_map'])}",
            do="read that code, then allow it: --trust-remote-code, trust_remote_code=True",
        )
    raise ModelError(
        "unknown architecture",
        where=folder,
        got=f"model_type {kind!r}",
        do="a newer transformers may know it; or open the module yourself and pass it with its processor",
    )


def _some_code(places: Any) -> str:
    return ", ".join(sorted(map(str, places.values()))) if isinstance(places, dict) else str(places)


def _config(folder: Path, options: dict[str, Any]) -> Any:
    import transformers

    try:
        return transformers.AutoConfig.from_pretrained(folder, **options)
    except Exception as error:  # configs fail in as many ways as there are architectures
        raise ModelError("the model's config cannot be read", where=folder, got=first_line(error)) from error


def _opener(config: Any, head: bool) -> Any:
    """The class that opens a config, with its language-model head or without."""
    import transformers

    return head_class(config) if head else transformers.AutoModel


def _given(processor: Any, tokenizer: Any, module: nn.Module) -> Any:
    """The processor of a module in memory."""
    if tokenizer is not None and processor is None:
        return open_tokenizer(tokenizer_folder(tokenizer), module)
    if processor is None:
        raise UsageError(
            "a module needs its processor", got=type(module).__name__, do="open_model(module, processor=tokenizer)"
        )
    return processor


def _adopt(whole: nn.Module, processor: Any, modality: str | None, tower: str | None, *, pool: str) -> OpenModel:
    """A module in memory as it is: its precision and device are its owner's; eval mode is set."""
    module: Any = whole
    if is_composite(whole):
        tower_config(whole.config, tower := tower or modality)
        module = getattr(whole, TOWERS[str(tower)].replace("_config", "_model"))
    kind = modality_of(module, override=modality)
    config = getattr(module, "config", None)
    name = getattr(config, "name_or_path", "") or type(module).__name__
    family = getattr(config, "model_type", type(module).__name__)
    opened = _opened(module.eval(), processor, kind, name, family)
    if pool == "auto" and is_composite(whole):
        return _tower_encoding(opened, str(tower), whole)
    return _encoding(opened, None, pool)


def _completed(module: Any, config: Any, folder: Path) -> Any:
    """The module with what its class alone does not give: another attention, no final norm."""
    for name, (where, function) in COMPLETED_BY.items():
        if getattr(config, name, None):
            module = getattr(import_module(where), function)(module, folder).eval().requires_grad_(False)
    return module


def _notes(place: Place, folder: Path, module: nn.Module) -> tuple[str, ...]:
    import torch

    notes = []
    if place.kind == "hub":
        notes.append(f"commit {folder.name}")
    if place.kind == "gguf":
        notes.append(f"weights dequantised from {place.path.name if place.path else 'GGUF'}")
    held = ((name, weight) for name, weight in module.state_dict().items() if not weight.is_meta)  # not offloaded
    broken = [name for name, weight in held if not torch.isfinite(weight).all()]
    if broken:
        notes.append(f"{len(broken)} weights hold values that are not finite, {broken[0]} first")
    return tuple(notes)


def _precision(dtype: str) -> torch.dtype:
    import torch

    if dtype not in DTYPES:
        raise UsageError("unknown dtype", got=dtype, expected=" | ".join(DTYPES))
    return getattr(torch, dtype)
