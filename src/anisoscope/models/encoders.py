"""What makes one vector of a text: the parts of a sentence-transformers model behind its transformer, or a plain pool.

A folder with `modules.json` says which parts follow one another. Read here, without the library:

| part | what it does to the states h₁ … h_T of a text |
|---|---|
| Pooling | `cls` h₁, `lasttoken` h_T, `max` by entry, `mean` Σh/T, `mean_sqrt_len_tokens` Σh/√T, `weightedmean` Σth/Σt|
| Dense | activation(W·x + b), plus x (or its projection) where it has a residual |
| Normalize | x/‖x‖ |

Several modes of pooling are concatenated, in the order of the library. Texts are cut to `max_seq_length`, led by a
prompt where the model has a default one or one is asked for; `include_prompt: false` keeps the prompt's tokens out of
the pool. A part of any other kind is not guessed at: there is no embedding, and a note says why.

A tower of a model like CLIP pools itself; its vector, `text_embeds` or `image_embeds`, is that through a projection.

    read_encoder(Path("all-MiniLM-L6-v2")).pooling        # ('mean',)
    pooling_encoder("last")                               # for a model that comes without such parts
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from anisoscope.errors import ModelError, UsageError
from anisoscope.models.hub import first_line
from anisoscope.models.locate import listed_modules, read_json, transformer_folder

POOLER = "pooler"  # the model's own
PROJECTIONS = {"text": ("embedding.text", "text_projection"), "vision": ("embedding.image", "visual_projection")}
POOLS = {"mean": "mean", "cls": "cls", "last": "lasttoken", "max": "max", "weighted": "weightedmean"}
MODES = ("cls", "max", "mean", "mean_sqrt_len_tokens", "weightedmean", "lasttoken")
_FLAGS = {  # how pooling modes were written before they had names, in the order in which they are concatenated
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}


class UnknownPart(Exception):
    """A part of a sentence-transformers model that is not read here."""


@dataclass(frozen=True)
class Encoder:
    """From the states of a text to its vector.

    - `pooling`: the modes, concatenated; `layers`: what follows, in order; `limit`: tokens that a text is cut to.
    - `prompt`: what leads every text; `prompt_tokens`: how many positions stay out of the pool.
    """

    pooling: tuple[str, ...]
    layers: tuple[nn.Module, ...] = ()
    limit: int | None = None
    lower: bool = False
    prompts: Mapping[str, str] = field(default_factory=dict)
    default_prompt: str | None = None
    include_prompt: bool = True
    prompt: str = ""
    prompt_tokens: int = 0
    site: str = "embedding"

    @property
    def words(self) -> str:
        """What is done to the states, for the protocol."""
        return ", ".join([" + ".join(self.pooling), *(type(layer).__name__.lower() for layer in self.layers)])


class Dense(nn.Module):
    """activation(W·x + b), and x or its projection added where there is a residual."""

    def __init__(self, config: Mapping[str, Any], weights: Mapping[str, Tensor]) -> None:
        super().__init__()
        self.linear = _linear(weights["linear.weight"], weights.get("linear.bias"))
        self.activation = _activation(str(config.get("activation_function", "torch.nn.modules.activation.Tanh")))
        self.residual: nn.Module | None = None
        if config.get("use_residual"):
            own = weights.get("residual.weight")
            self.residual = nn.Identity() if own is None else _linear(own, None)

    def forward(self, x: Tensor) -> Tensor:
        out = self.activation(self.linear(x))
        return out if self.residual is None else out + self.residual(x)


class Normalize(nn.Module):
    """x/‖x‖."""

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.normalize(x, dim=-1)


def pooling_encoder(pool: str) -> Encoder:
    """The encoder of a model that comes without one: nothing but a pool.

    >>> pooling_encoder("weighted").pooling
    ('weightedmean',)
    """
    return Encoder((POOLS[pool],))


def tower_encoder(tower: str, projection: nn.Linear | None) -> Encoder | None:
    """The encoder of a tower with a projection: the site `embedding.text` or `embedding.image`."""
    return None if projection is None else Encoder((POOLER,), (projection,), site=PROJECTIONS[tower][0])


def read_projection(folder: Path, tower: str, *, dtype: torch.dtype = torch.float32) -> nn.Linear | None:
    """The projection of a tower, from the weights of the whole model; None where it has none."""
    from safetensors import safe_open

    name = f"{PROJECTIONS[tower][1]}.weight" if tower in PROJECTIONS else ""
    for file in sorted(folder.glob("*.safetensors")):
        with safe_open(file, "pt") as opened:
            if name in opened.keys():  # noqa: SIM118  # not a dict
                return _linear(opened.get_tensor(name), None).to(dtype).eval().requires_grad_(False)
    return None


def read_encoder(folder: Path, *, dtype: torch.dtype = torch.float32) -> Encoder | None:
    """The encoder that a folder describes; None where it has no `modules.json`. Raises `UnknownPart`."""
    parts = listed_modules(folder)
    if not parts:
        return None
    kinds = [str(part.get("type", "")).rpartition(".")[2] for part in parts]
    if kinds[:2] != ["Transformer", "Pooling"] or set(kinds[2:]) - {"Dense", "Normalize"}:
        raise UnknownPart(f"modules.json lists {', '.join(kinds)}")
    pooling = _config(folder / str(parts[1]["path"]))
    layers = [_layer(kind, folder / str(part["path"])) for kind, part in zip(kinds[2:], parts[2:], strict=True)]
    reading, asked = _reading(transformer_folder(folder)), read_json(folder / "config_sentence_transformers.json")
    prompts = {name: text or "" for name, text in (asked.get("prompts") or {}).items()}
    return Encoder(
        _modes(pooling),
        tuple(layer.to(dtype).eval().requires_grad_(False) for layer in layers),
        limit=reading.get("max_seq_length"),
        lower=bool(reading.get("do_lower_case")),
        prompts=prompts,
        default_prompt=asked.get("default_prompt_name"),
        include_prompt=bool(pooling.get("include_prompt", True)),
    )


def with_prompt(encoder: Encoder, asked: str | None, tokenizer: Any) -> Encoder:
    """The encoder with the prompt that was asked for, by its name or as it is; else the model's default one."""
    prompt = encoder.prompts.get(encoder.default_prompt or "", "") if asked is None else _prompt(encoder, asked)
    return replace(encoder, prompt=prompt, prompt_tokens=0 if encoder.include_prompt else _length(prompt, tokenizer))


def stated_length(tokenizer: Any) -> int | None:
    """The `max_seq_length` that newer versions of the library keep in the tokenizer; None where there is none."""
    stated = getattr(tokenizer, "model_max_length", None)
    return stated if isinstance(stated, int) and stated < 10**9 else None


def _prompt(encoder: Encoder, asked: str) -> str:
    if asked in encoder.prompts:
        return encoder.prompts[asked]
    if asked.isidentifier():  # a name, not a text
        raise UsageError(
            "the model has no prompt of this name",
            got=asked,
            expected=", ".join(encoder.prompts) or "none: it has no prompts",
            do="give the text itself, such as 'query: '",
        )
    return asked


def _length(prompt: str, tokenizer: Any) -> int:
    """Positions of the prompt at the front, special tokens before it included, those behind it not."""
    if not prompt:
        return 0
    ids = list(tokenizer(prompt)["input_ids"])
    return len(ids) - (ids[-1] in getattr(tokenizer, "all_special_ids", ()))


# -- files -------------------------------------------------------------------------------------------------------------


def _config(folder: Path) -> dict[str, Any]:
    found = read_json(folder / "config.json")
    if not isinstance(found, dict) or not found:
        raise ModelError("a part of the model has no config", where=folder, expected="config.json")
    return found


def _reading(folder: Path) -> dict[str, Any]:
    """What `sentence_bert_config.json`, or the like of another family, says about the texts."""
    return next((read_json(file) for file in sorted(folder.glob("sentence_*_config.json"))), {})


def _modes(config: Mapping[str, Any]) -> tuple[str, ...]:
    named = config.get("pooling_mode")
    modes = [named] if isinstance(named, str) else list(named or ())
    modes = modes or [mode for flag, mode in _FLAGS.items() if config.get(flag)] or ["mean"]
    unknown = [mode for mode in modes if mode not in MODES]
    if unknown:
        raise UnknownPart(f"pooling by {unknown[0]!r}")
    return tuple(modes)


def _layer(kind: str, folder: Path) -> nn.Module:
    config = read_json(folder / "config.json")
    names = {config.get(f"module_{end}_name") or "sentence_embedding" for end in ("input", "output")}
    if names != {"sentence_embedding"}:
        raise UnknownPart(f"a {kind} part that reads or writes {', '.join(sorted(names - {'sentence_embedding'}))}")
    return Normalize() if kind == "Normalize" else Dense(_config(folder), _weights(folder))


def _weights(folder: Path) -> dict[str, Tensor]:
    from safetensors.torch import load_file

    safe, pickled = folder / "model.safetensors", folder / "pytorch_model.bin"
    try:
        return load_file(safe) if safe.is_file() else torch.load(pickled, map_location="cpu", weights_only=True)
    except Exception as error:  # damaged files fail in as many ways as there are formats
        raise ModelError("the weights of a part cannot be read", where=folder, got=first_line(error)) from error


def _linear(weight: Tensor, bias: Tensor | None) -> nn.Linear:
    made = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None)
    made.load_state_dict({"weight": weight, **({} if bias is None else {"bias": bias})})
    return made


def _activation(path: str) -> nn.Module:
    """An activation of torch.nn by its path; anything else would be code of the model's own."""
    found = getattr(nn, path.rpartition(".")[2], None) if path.startswith("torch.nn.modules.") else None
    if not (isinstance(found, type) and issubclass(found, nn.Module)):
        raise UnknownPart(f"a Dense part with the activation {path}")
    return found()
