"""The recipe of a training: everything that decides its weights, as one flat TOML file.

A recipe is checked before anything heavy is imported, written beside the checkpoints as `recipe.toml`, and read back by
`anisoscope pretrain --recipe`: the same recipe on the same data gives the same checkpoints. Its fields are the options
of the command.

>>> recipe = Recipe(arch="bert", data=["enwik8"], steps=8192, seeds="0-1")
>>> recipe.grid()
(0, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192)
>>> Recipe.check({"arch": "bert", "data": ["enwik8"], "stepz": 5})
Traceback (most recent call last):
...
anisoscope.errors.UsageError: the setting 'stepz' is wrong
  got:      5
  to do:    there is no such setting; did you mean "steps"?
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, Self

from pydantic import model_validator

from anisoscope.errors import UsageError
from anisoscope.inputs.files import read_toml
from anisoscope.runs.settings import Seeds, Settings, option

Arch = Literal["bert", "gpt2", "neox", "llama", "vit", "convnet"]
Objective = Literal["mlm", "clm", "headless", "classify"]
Precision = Literal["float32", "bfloat16", "float16"]
Attention = Literal[
    "softmax", "softmax_one", "sigmoid", "cosine", "query_centred", "key_centred", "gated", "linear", "no_bias"
]
Optimiser = Literal["adamw", "coupled_adam", "muon"]

OBJECTIVES: dict[str, tuple[Objective, ...]] = {
    "bert": ("mlm", "headless"),
    "gpt2": ("clm", "headless"),
    "neox": ("clm", "headless"),
    "llama": ("clm", "headless"),
    "vit": ("classify",),
    "convnet": ("classify",),
}
"""What each architecture can be trained for; the first is its default."""

_ROUNDED = (("clm", "softmax"), ("clm", "key_centred"))

DIGITS = "digits"
"""The name, given as data, of scikit-learn's handwritten digits."""

LARGEST_SEED = 2**32 - 1  # of numpy's generators; the held-out windows have 2**32


def _optional(help: str) -> float | None:
    return option(help, None, allow_inf_nan=False, gt=0)


def _real(help: str, default: float, **limits: Any) -> float:
    return option(help, default, allow_inf_nan=False, **limits)


class Recipe(Settings):
    """One training, for one or more seeds."""

    data: list[str] = option(
        "Text files (repeat the option), one folder of images (a subfolder per class), or `digits`.",
        short="-d",
        paths=True,
        min_length=1,
    )
    data_sha256: str | None = option("Hash of the data, as a training records it.", None)
    arch: Arch = option("Architecture.", "bert")
    objective: Objective | None = option("What it is trained for (default: the usual one of the architecture).", None)
    attention: Attention = option("Kind of attention.", "softmax")
    validation: float = _real("Share held out: the end of each text, or images at even intervals.", 0.05, gt=0, lt=0.5)

    tokens: Literal["bytes", "bpe"] = option("Bytes, or byte pairs trained on the data.", "bytes")
    vocabulary: int = option("Number of tokens, for bpe.", 4096, ge=300, le=2**24)
    length: int = option("Tokens per sequence, special ones included.", 128, ge=8, le=2**20)
    image_size: int = option("Side of an image in pixels.", 16, ge=4, le=2**14)
    patch: int = option("Side of a patch in pixels.", 2, ge=1, le=2**14)

    layers: int = option("Blocks.", 4, ge=1, le=4096)
    hidden: int = option("Width.", 96, ge=8, le=2**20)
    heads: int = option("Attention heads per block.", 4, ge=1, le=2**16)
    feedforward: int | None = option("Width inside the feed-forward part (default: 4 × hidden).", None, ge=1, le=2**24)
    dropout: float = _real("Dropout everywhere.", 0.0, ge=0, lt=1)
    initializer_range: float = _real("Spread of the initial weights.", 0.035, gt=0)
    final_norm: bool = option("Normalise the last block's output (causal models may go without).", True)
    positions: Literal["sinusoidal", "random"] = option(
        "How a table of learned positions starts (bert, gpt2).", "sinusoidal"
    )

    steps: int = option("Steps of training.", 4096, ge=1, le=10**9)
    batch: int = option("Sequences or images per step.", 16, ge=1, le=2**20)
    seeds: Seeds = option("Seeds to train one after the other, such as 0,1,2 or 0-4.", [0], min_length=1)
    optimiser: Optimiser = option("AdamW; or another one, of the embeddings or of the matrices of the blocks.", "adamw")
    learning_rate: float = _real("Highest learning rate.", 2e-3, gt=0)
    schedule: Literal["linear", "cosine", "constant"] = option("Learning rate after the warm-up.", "linear")
    warmup: int = option("Steps over which the learning rate rises.", 200, ge=0, le=10**9)
    weight_decay: float = _real("Weight decay.", 0.01, ge=0)
    clip: float = _real("Largest norm of a gradient.", 1.0, gt=0)
    qk_clip: float | None = _optional("Greatest attention logit of a head; queries and keys above it shrink (gpt2).")
    isotropy_weight: float = _real(
        "Weight of 1 − IsoScore* in the loss; a negative one makes less isotropic states.", 0
    )
    centre_output: bool = option("Take the mean out of the output embeddings after each step.", False)
    logits: Precision = option("Precision of attention logits, output logits and their softmax (clm).", "float32")
    bad_batch: int | None = option("Step from which the training text is random tokens.", None, ge=1, le=10**9)
    bad_batches: int = option("For how many steps it is.", 1, ge=1, le=10**9)
    mask: float = _real("Share of tokens to predict, for masked models.", 0.15, gt=0, lt=1)
    validation_batches: int = option("Held-out batches for the validation loss, of text.", 16, ge=1, le=10**6)

    first_checkpoint: int = option("First step of the log grid, after step 0.", 16, ge=1, le=10**9)
    per_doubling: int = option("Checkpoints per doubling of the step.", 1, ge=1, le=64)
    checkpoint_every: int | None = option("Steps between checkpoints, instead of a log grid.", None, ge=1, le=10**9)
    save_every: int = option("Steps between states to resume from; it changes no weights.", 500, ge=1, le=10**9)

    @model_validator(mode="after")
    def _complete(self) -> Self:
        """The objective follows the architecture, and the feed-forward width the hidden size, unless they are given."""
        for name, usual in (("objective", OBJECTIVES[self.arch][0]), ("feedforward", 4 * self.hidden)):
            if getattr(self, name) is None:
                object.__setattr__(self, name, usual)  # frozen from here on
        for wrong in self._contradictions():
            raise UsageError("the recipe contradicts itself", got=wrong)
        return self

    def _contradictions(self) -> list[str]:
        """Fields that do not go together, in words."""
        known, image = OBJECTIVES[self.arch], f"image size {self.image_size}"
        no_attention = self.arch == "convnet"
        rules = (
            (self.objective not in known, f"{self.arch} is trained for {' or '.join(known)}, not {self.objective}"),
            (
                not no_attention and self.hidden % self.heads,
                f"hidden size {self.hidden} is not a multiple of {self.heads} heads",
            ),
            (
                self.arch in ("neox", "llama") and (self.hidden // self.heads) % 2,
                f"rotary positions need an even head size, not {self.hidden // self.heads}",
            ),
            (no_attention and self.attention != "softmax", "a convnet has no attention to vary"),
            (self.qk_clip is not None and self.arch != "gpt2", f"qk_clip is for gpt2, not {self.arch}"),
            (
                self.qk_clip is not None and self.attention in ("cosine", "linear"),
                f"{self.attention} attention has no logits that qk_clip could shrink",
            ),
            (self.centre_output and self.objective not in ("clm", "mlm"), f"{self.objective} has no output embeddings"),
            (
                self.optimiser == "coupled_adam" and self.vision,
                "coupled Adam is for embeddings of tokens, not for images",
            ),
            (self.isotropy_weight and no_attention, "the isotropy of a convnet's maps cannot be trained"),
            (not self.final_norm and not self.causal, f"{self.arch} cannot go without its final norm"),
            (
                self.logits != "float32" and (self.objective, self.attention) not in _ROUNDED,
                f"half-precision logits are for clm with softmax or key_centred attention, not {self.objective} with "
                f"{self.attention}",
            ),
            (self.bad_batch is not None and self.vision, "a bad batch is one of text"),
            (no_attention and self.layers < 2, "a convnet has two stages of at least one block each: layers 2 or more"),
            (self.vision and self.image_size % self.patch, f"{image} is not a multiple of the patch {self.patch}"),
            (len(set(self.seeds)) < len(self.seeds), f"a seed is named twice in {self.seeds}"),
            (min(self.seeds) < 0 or max(self.seeds) > LARGEST_SEED, f"seeds between 0 and 2^32 − 1, not {self.seeds}"),
        )
        return [words for broken, words in rules if broken]

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
        """The steps that are published as checkpoints: 0, a log grid or even steps, and the last one."""
        if self.checkpoint_every is not None:
            return tuple(sorted({*range(0, self.steps, self.checkpoint_every), self.steps}))
        steps, power = {0, self.steps}, 0
        while (step := round(self.first_checkpoint * 2 ** (power / self.per_doubling))) < self.steps:
            steps.add(step)
            power += 1
        return tuple(sorted(steps))

    def to_toml(self) -> str:
        """The recipe as flat TOML; a field without a value is left out."""
        import tomli_w

        return tomli_w.dumps(self.as_dict())

    @classmethod
    def read(cls, path: str | Path) -> Recipe:
        """The recipe of a file; a clear error where it is not one."""
        return cls.check(read_toml(Path(path)), where=path)

    def differences(self, other: Recipe) -> list[str]:
        """Field by field, in what two recipes would train different weights (seeds are independent trainings)."""
        free = {"seeds", "save_every", "data"} if self.data_sha256 else {"seeds", "save_every"}
        mine, theirs = self.model_dump(), other.model_dump()
        changed = [name for name in mine if name not in free and mine[name] != theirs[name]]
        return [f"{name} = {theirs[name]} (was {mine[name]})" for name in changed]
