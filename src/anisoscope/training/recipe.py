"""The recipe of a training: everything that decides its weights, as one flat TOML file.

A recipe is validated before anything heavy is imported, written beside the checkpoints as `recipe.toml`, and read back
by `anisoscope pretrain --recipe`: the same recipe on the same data gives the same checkpoints.

>>> recipe = Recipe(arch="bert", data=("enwik8",), steps=8192, seeds=(0, 1))
>>> recipe.grid()
(0, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192)
>>> print(recipe.to_toml().splitlines()[3])
data = ["enwik8"]
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from anisoscope.errors import UsageError
from anisoscope.runs import toml

Arch = Literal["bert", "gpt2", "neox", "llama", "vit", "convnet"]
Objective = Literal["mlm", "clm", "headless", "classify"]
Attention = Literal["softmax", "softmax_one", "sigmoid", "cosine", "query_centred", "gated", "no_bias"]

OBJECTIVES: dict[str, tuple[Objective, ...]] = {
    "bert": ("mlm", "headless"),
    "gpt2": ("clm", "headless"),
    "neox": ("clm", "headless"),
    "llama": ("clm", "headless"),
    "vit": ("classify",),
    "convnet": ("classify",),
}
"""What each architecture can be trained for; the first is its default."""

DIGITS = "digits"
"""The name, given as data, of scikit-learn's handwritten digits."""


class Recipe(BaseModel):
    """One training, for one or more seeds. `data` holds text files, one folder of images, or `digits`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    arch: Arch = "bert"
    objective: Objective | None = None
    attention: Attention = "softmax"
    data: tuple[str, ...] = Field(min_length=1)
    data_sha256: str | None = None
    validation: float = Field(0.05, gt=0, lt=0.5)
    """The share of the data that is held out: the end of each text, or every so many-th image."""

    tokens: Literal["bytes", "bpe"] = "bytes"
    vocabulary: int = Field(4096, ge=300)
    length: int = Field(128, ge=8)
    image_size: int = Field(16, ge=4)
    patch: int = Field(2, ge=1)

    layers: int = Field(4, ge=1)
    hidden: int = Field(96, ge=8)
    heads: int = Field(4, ge=1)
    feedforward: int | None = Field(None, ge=1)
    dropout: float = Field(0.0, ge=0, lt=1)
    initializer_range: float = Field(0.035, gt=0)
    positions: Literal["sinusoidal", "random"] = "sinusoidal"
    """How a table of learned positions starts (bert, gpt2)."""

    steps: int = Field(4096, ge=1)
    batch: int = Field(16, ge=1)
    seeds: tuple[int, ...] = Field((0,), min_length=1)
    learning_rate: float = Field(2e-3, gt=0)
    schedule: Literal["linear", "cosine", "constant"] = "linear"
    warmup: int = Field(200, ge=0)
    weight_decay: float = Field(0.01, ge=0)
    clip: float = Field(1.0, gt=0)
    mask: float = Field(0.15, gt=0, lt=1)
    validation_batches: int = Field(16, ge=1)

    first_checkpoint: int = Field(16, ge=1)
    per_doubling: int = Field(1, ge=1)
    save_every: int = Field(500, ge=1)
    """Steps between two states kept for resuming; it decides no weight."""

    @model_validator(mode="before")
    @classmethod
    def _fill_defaults(cls, given: Any) -> Any:
        """The objective follows the architecture, and the feed-forward width the hidden size, unless they are given."""
        if not isinstance(given, dict):
            return given
        filled = dict(given)
        if filled.get("objective") is None:
            filled["objective"] = OBJECTIVES.get(filled.get("arch", "bert"), ("mlm",))[0]
        if filled.get("feedforward") is None:
            filled["feedforward"] = 4 * int(filled.get("hidden", 96))
        return filled

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.objective not in OBJECTIVES[self.arch]:
            raise ValueError(f"{self.arch} is trained for {' or '.join(OBJECTIVES[self.arch])}, not {self.objective}")
        if self.arch != "convnet" and self.hidden % self.heads:
            raise ValueError(f"hidden size {self.hidden} is not a multiple of {self.heads} heads")
        if self.arch in ("neox", "llama") and (self.hidden // self.heads) % 2:
            raise ValueError(f"rotary positions need an even head size, not {self.hidden // self.heads}")
        if self.arch == "convnet" and self.attention != "softmax":
            raise ValueError("a convnet has no attention to vary")
        if self.arch == "convnet" and self.layers < 2:
            raise ValueError("a convnet has two stages of at least one block each: --layers 2 or more")
        if self.vision and self.image_size % self.patch:
            raise ValueError(f"image size {self.image_size} is not a multiple of the patch {self.patch}")
        if len(set(self.seeds)) < len(self.seeds):
            raise ValueError(f"a seed is named twice in {list(self.seeds)}")
        return self

    @property
    def vision(self) -> bool:
        return self.arch in ("vit", "convnet")

    @property
    def causal(self) -> bool:
        return self.arch in ("gpt2", "neox", "llama")

    @property
    def masked(self) -> bool:
        """Whether input tokens are replaced by the mask token: the BERT-like objectives."""
        return self.arch == "bert"

    def grid(self) -> tuple[int, ...]:
        """The steps that are published as checkpoints: 0, a log grid, and the last one."""
        steps, power = {0, self.steps}, 0
        while (step := round(self.first_checkpoint * 2 ** (power / self.per_doubling))) < self.steps:
            steps.add(step)
            power += 1
        return tuple(sorted(steps))

    def to_toml(self) -> str:
        """The recipe as flat TOML; a field without a value is left out."""
        return toml.dumps(self.model_dump())

    @classmethod
    def read(cls, path: str | Path) -> Recipe:
        """The recipe of a file; a clear error where it is none."""
        return make_recipe(**toml.load(path))

    def differences(self, other: Recipe) -> list[str]:
        """Field by field, in what two recipes would train different weights (seeds are independent trainings)."""
        free = {"seeds", "save_every", "data"} if self.data_sha256 else {"seeds", "save_every"}
        mine, theirs = self.model_dump(), other.model_dump()
        changed = [name for name in mine if name not in free and mine[name] != theirs[name]]
        return [f"{name} = {theirs[name]} (was {mine[name]})" for name in changed]


def make_recipe(**fields: Any) -> Recipe:
    """A validated recipe; what is wrong with it is said in one line per field.

    >>> make_recipe(arch="bert", objective="clm", data=("text",))
    Traceback (most recent call last):
    ...
    anisoscope.errors.UsageError: the recipe is wrong
      got:      bert is trained for mlm or headless, not clm
      to do:    see `anisoscope pretrain --help` for what each field takes
    """
    try:
        return Recipe(**fields)
    except ValidationError as error:
        got = "; ".join(_fault(fault) for fault in error.errors())
        raise UsageError(
            "the recipe is wrong", got=got, do="see `anisoscope pretrain --help` for what each field takes"
        ) from error


def _fault(fault: Any) -> str:
    field = ".".join(str(part) for part in fault["loc"])
    message = str(fault["msg"]).removeprefix("Value error, ")
    return f"{field}: {message} ({fault['input']!r})" if field else message


def parse_seeds(text: str) -> tuple[int, ...]:
    """Seeds as the command line gives them.

    >>> parse_seeds("0,1,2")
    (0, 1, 2)
    """
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError as error:
        raise UsageError("cannot read the seeds", got=text, expected="whole numbers with commas, as 0,1,2") from error
