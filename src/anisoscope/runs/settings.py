"""Settings: what a study is asked, typed once for the command line, TOML, Python and the docs.

A study's settings are put together from parts (`Data`, `Reading`, `Model`, `Models`, `Sample`) and its own fields. A
field is declared with `option`: its help, its default, its limits, and how the command line spells it. Choices are
literals. Everything that can change a number is a setting; what cannot (device, batch size, threads, how many
processes) is `Machine`.

>>> class Example(Sample):
...     rate: float = option("False-positive rate.", 0.01, gt=0, lt=1)
>>> Example.check({"rate": 0.05}, command="example").as_dict()
{'sample': 4096, 'seed': 0, 'rate': 0.05}
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, Self, Union, get_args, get_origin

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from anisoscope.errors import UsageError

LARGEST_SEED = 2**63 - 1
MANY = 2**63 - 1  # more than anything can be counted to


def option(
    help: str,
    default: Any = ...,
    *,
    short: str = "",
    argument: bool = False,
    commas: bool = False,
    complete: str = "",
    metavar: str = "",
    paths: bool = False,
    writes: str = "",
    **limits: Any,
) -> Any:
    """A field of settings, with all that the command line has to know about it.

    - `short`: a second flag, of one letter or another name; `argument`: given by position, not by name;
    - `commas`: a list that may also be written as one word, `a,b,c`;
    - `complete`: what the tab key offers (`models`); choices complete themselves;
    - `paths`: names files or folders, which a run must not overwrite; `writes`: names a file of this kind to write;
    - `limits`: those of pydantic (`ge`, `gt`, `le`, `lt`, `min_length`).
    """
    known = {"short": short, "argument": argument, "commas": commas, "complete": complete, "metavar": metavar}
    limits.setdefault("allow_inf_nan", None)
    given = {name: value for name, value in limits.items() if value is not None}
    extra: dict[str, Any] = {**known, "paths": paths, "writes": writes}
    if isinstance(default, list):
        return Field(default_factory=lambda: list(default), description=help, json_schema_extra=extra, **given)
    return Field(default, description=help, json_schema_extra=extra, **given)


class Settings(BaseModel):
    """Base of all settings: frozen, and nothing unknown is accepted."""

    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=())

    def as_dict(self) -> dict[str, Any]:
        """Plain values for manifest and TOML; what is not set is left out."""
        return self.model_dump(mode="json", exclude_none=True)

    @classmethod
    def check(cls, values: Mapping[str, Any], *, command: str = "", where: object = None) -> Self:
        """Validate values that a person wrote; the error names the field, and the nearest known word."""
        try:
            return cls(**{name: _plain(value) for name, value in values.items()})
        except ValidationError as error:
            first = error.errors()[0]
            places = [one for one in first["loc"] if isinstance(one, str) and not one.startswith("function-")]
            field, missing = ".".join(places), first["type"] == "missing"
            raise UsageError(
                f"{command + ': ' if command else ''}the setting {field or 'settings'!r} is "
                + ("missing" if missing else "wrong"),
                where=where,
                got=None if missing else _shown(first.get("input")),
                **cls._advice(field, first),
            ) from None

    @classmethod
    def _advice(cls, field: str, error: Any) -> dict[str, str]:
        """What was expected, or what to do."""
        name = field.partition(".")[0]
        if error["type"] == "extra_forbidden":
            return {"do": f"there is no such setting{nearest(name, cls.model_fields)}"}
        known = cls.model_fields.get(name)
        choices = choices_of(known.annotation) if known else ()
        if choices:
            return {"do": f"choose {', '.join(map(str, choices))}{nearest(str(error.get('input')), map(str, choices))}"}
        if error["type"] == "too_short":
            return {"expected": f"at least {error['ctx']['min_length']}"}
        if error["type"] in _NUMBER_ERRORS and known and (words := numbers_of(name, known)):
            return {"expected": words if error["type"] != "finite_number" else f"{words}, finite"}
        if error["type"] in _WORDS:
            return {"expected": _WORDS[error["type"]]}
        return {"do": re.sub(r"^Value error, ", "", error["msg"])}


_NUMBER_ERRORS = (
    *(f"{kind}_{what}" for kind in ("int", "float") for what in ("parsing", "type", "parsing_size", "from_float")),
    *("finite_number", "greater_than", "greater_than_equal", "less_than", "less_than_equal"),
)
_WORDS = {"string_type": "text", "list_type": "a list", "dict_type": "a table", "missing": "a value"}
_WORDS |= dict.fromkeys(("bool_parsing", "bool_type"), "true or false")


_SIGNS = {"gt": (">", "<"), "ge": ("≥", "≤"), "lt": ("<", ">"), "le": ("≤", "≥")}  # of x a, and of a x


def numbers_of(name: str, field: Any) -> str:
    """Which numbers a field takes, in words; nothing where it takes no numbers.

    >>> class Example(Settings):
    ...     rate: list[Annotated[float, Field(gt=0, lt=1)]]
    ...     sample: int | None = Field(64, ge=64)
    >>> [numbers_of(name, field) for name, field in Example.model_fields.items()]
    ['a number, 0 < rate < 1', 'a whole number, sample ≥ 64']
    """
    kinds, limits = _numbers_inside(field.annotation)
    for one in (*limits, *field.metadata):
        kinds |= {sign: getattr(one, sign) for sign in ("gt", "ge", "lt", "le") if hasattr(one, sign)}
    if "kind" not in kinds:
        return ""
    low = next(((sign, kinds[sign]) for sign in ("gt", "ge") if sign in kinds), None)
    high = next(((sign, kinds[sign]) for sign in ("lt", "le") if sign in kinds), None)
    if low and high:
        return f"{kinds['kind']}, {low[1]:,} {_SIGNS[low[0]][1]} {name} {_SIGNS[high[0]][0]} {high[1]:,}"
    one = low or high
    return f"{kinds['kind']}, {name} {_SIGNS[one[0]][0]} {one[1]:,}" if one else kinds["kind"]


def _numbers_inside(annotation: Any) -> tuple[dict[str, Any], list[Any]]:
    """The kind of number inside an annotation, and the limits that are written there."""
    if annotation in (int, float):
        return {"kind": "a whole number" if annotation is int else "a number"}, []
    inner = [_numbers_inside(part) for part in get_args(annotation)]
    limits = [one for part in getattr(annotation, "__metadata__", ()) for one in getattr(part, "metadata", [part])]
    kinds = {name: value for kind, _ in inner for name, value in kind.items()}
    return kinds, [*(one for _, more in inner for one in more), *limits]


def nearest(word: str, known: Any) -> str:
    """`; did you mean "block"?`, or nothing.

    >>> nearest("mesure", ["measure", "vectors"])
    '; did you mean "measure"?'
    """
    found = difflib.get_close_matches(word[:100], [str(one) for one in known], n=1)
    return f'; did you mean "{found[0]}"?' if found else ""


def choices_of(annotation: Any) -> tuple[Any, ...]:
    """The words that a field allows: those of its literal, also inside a list or an optional."""
    if get_origin(annotation) is Literal:
        return get_args(annotation)
    inner = get_args(annotation) if get_origin(annotation) in (list, tuple, Union, UnionType, Annotated) else ()
    return next((found for part in inner if (found := choices_of(part))), ())


def _plain(value: Any) -> Any:
    if isinstance(value, Path):
        return str(value)
    return [_plain(one) for one in value] if isinstance(value, list | tuple) else value


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 200 else f"{text[:197]}…"


def parse_seeds(value: Any) -> Any:
    """`0-4`, `0,2`, `3` as a list of seeds; lists stay as they are.

    >>> parse_seeds("0-2,7"), parse_seeds(["1", "3-4"])
    ([0, 1, 2, 7], [1, 3, 4])
    """
    if isinstance(value, list | tuple):
        value = ",".join(map(str, value)) if any(isinstance(one, str) for one in value) else list(value)
    if not isinstance(value, str):
        return value
    seeds: list[int] = []
    for part in value.split(","):
        ends = re.fullmatch(r"\s*(\d{1,9})\s*(?:-\s*(\d{1,9})\s*)?", part)
        if ends is None or not 0 <= int(ends[2] or ends[1]) - int(ends[1]) <= 10_000:
            raise ValueError("write seeds as 0-4 or 0,2,3")
        seeds += range(int(ends[1]), int(ends[2] or ends[1]) + 1)
    return sorted(set(seeds))


Seeds = Annotated[list[int], BeforeValidator(parse_seeds)]

Documents = Literal["auto", "file", "lines", "blank", "paragraphs", "wikitext"]
Modality = Literal["text", "speech", "vision"]
Dtype = Literal["float32", "float64", "bfloat16", "float16"]


def parse_spectrum(value: Any) -> Any:
    """`all`, `every:4`, `last` or `none`; true and false are all and none.

    >>> parse_spectrum(False), parse_spectrum("every:4")
    ('none', 'every:4')
    """
    word = {True: "all", False: "none"}[value] if isinstance(value, bool) else value
    if isinstance(word, str) and re.fullmatch(r"all|last|none|every:[1-9]\d{0,3}", word):
        return word
    raise ValueError("write all, every:4 (each fourth block and the last), last, or none")


Spectrum = Annotated[str, BeforeValidator(parse_spectrum)]


class Sample(Settings):
    """How many vectors are kept whole, for the statistics that need a sample."""

    sample: int = option("Vectors kept at each site, for statistics that need a sample.", 4096, ge=64, le=2**24)
    seed: int = option("Seed of the sample.", 0, ge=0, le=LARGEST_SEED)


class Reading(Settings):
    """What is read, and how it splits into documents."""

    data: list[str] = option(
        "Files, folders, globs, - or hf:NAME (default: built-in data).", [], short="-d", paths=True
    )
    documents: Documents = option("How a text file splits into documents.", "auto")
    column: str | None = option("Column of a table: texts, or token ids (input_ids).", None)
    limit: int | None = option("Read at most this many documents, clips or images.", None, ge=1, le=MANY)


class Data(Reading):
    """What a model reads, in windows."""

    length: float | None = option(
        "Window in tokens (default 512), or in seconds for speech.", None, gt=0, allow_inf_nan=False
    )


class Opening(Settings):
    """How a model is opened."""

    revision: str | None = option("Branch, tag or commit of a Hub model.", None)
    tower: Literal["text", "vision"] | None = option("Which tower of a model with two, such as CLIP.", None)
    modality: Modality | None = option("What the model reads, if its config does not say.", None)
    tokenizer: str | None = option("Tokenizer from elsewhere: a folder, a Hub id, or `bytes`.", None)
    dtype: Dtype = option("Precision of the model.", "float32")


class Model(Opening):
    """One model."""

    model: str = option("Hub id, folder or GGUF file.", argument=True, complete="models", paths=True)


def several(help: str) -> Any:
    """Names of models or files, at least one, without an option's name before them."""
    return option(help, argument=True, complete="models", paths=True, min_length=1)


class Models(Opening):
    """One model or several, side by side."""

    models: list[str] = several("Hub ids, folders or GGUF files; `anisoscope models` lists those of the papers.")
    name: list[str] = option("Names for the models in tables and figures, in order.", [])


class Hidden(Settings):
    """Which hidden states are looked at, and which of their positions count."""

    sites: list[str] = option("Patterns of sites: 'block.*', final_norm …", ["*"], commas=True, min_length=1)
    specials: Literal["keep", "drop"] = option("Special tokens: keep them (as the paper does) or drop them.", "keep")
    positions: Literal["all", "last"] = option("Positions that count: all, or the last one of each window.", "all")
    maps: Literal["positions", "flatten"] = option(
        "Convolutional maps: one vector per position, or one per image.", "positions"
    )
    whisper_window: Literal["speech", "all"] = option(
        "Whisper's encoder: the states of the recording alone, or all.", "speech"
    )
    parts: bool = option(
        "Also measure what attention and MLP of each block add (block.3.attention, block.3.mlp).", False
    )
    spectrum: Spectrum = option("Sites whose covariance spectrum is measured: all, every:4, last or none.", "all")


class Excerpts(Settings):
    """Whether texts are kept beside sampled vectors."""

    keep_text: bool = option("Keep the text around each sampled vector in the run, for hovering and neighbours.", False)


class Embedding(Settings):
    """How one vector is made of a text: the site `embedding`."""

    pool: Literal["auto", "none", "mean", "cls", "last", "max", "weighted"] = option(
        "The vector of a whole text: as a sentence-transformers model makes it (auto), or pooled in this way.", "auto"
    )
    prompt: str | None = option("Prompt before every text: its name in the model (query …), or the words.", None)


class Machine(Settings):
    """Where and how fast a study runs; no number may depend on it."""

    device: str = option("cpu, cuda, cuda:1, mps …", "cpu")
    device_map: str | None = option(
        "Spread the model over devices: auto, or modules and devices as JSON (text or a file); needs accelerate.", None
    )
    batch_tokens: int | None = option("Padded positions per batch (default 8192).", None, ge=1)
    models_dir: str | None = option("Mirror laid out as owner/name[@revision], searched first.", None, paths=True)
    trust_remote_code: bool = option("Allow the model's own Python files to run.", False)
    threads: int | None = option("CPU threads (default: all).", None, ge=1, le=4096)
    engine: Literal["local", "ray"] = option("Run in this process (or under torchrun), or on Ray.", "local")
    address: str | None = option("Address of a Ray cluster to join (default: start one here).", None)
    workers: int | None = option("Ray workers (default: one per core).", None, ge=1)
    gpus_per_worker: float = option("Accelerators per Ray worker.", 0.0, ge=0)
    shard: str | None = option("Only part I of N of the data, such as 0/8; `anisoscope merge` adds the parts up.", None)
