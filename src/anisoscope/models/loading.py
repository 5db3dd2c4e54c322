"""Put the weights of a folder into a model class, quietly, and make sure that what is measured was really there.

transformers fills what a checkpoint lacks with random numbers and only logs it. Here a missing weight is an error, but
for those that no site depends on (poolers; tables that are never read) and those that the class computes from its
config (RoFormer's sinusoids), which are what they would have been. A checkpoint with more blocks than its config
gives is an error too: it would be cut short. Pickled weights are read with `weights_only`, which refuses everything
that is not a tensor.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from logging import CRITICAL
from math import prod
from pathlib import Path
from typing import Any

from anisoscope.errors import ModelError
from anisoscope.models import gguf
from anisoscope.models.hub import first_line
from anisoscope.models.locate import check_beside, has_weights

_UNUSED = re.compile(
    r"(?<!encoder\.)\bpooler\."  # on top of the last block: no site sees it (MANTa's encoder.pooler is another thing)
    r"|position_ids$"
)

_SMALL = 2**28  # bytes of weights
_TIMES = 4  # times more numbers in a model than in its weights: the config is not theirs
_OTHERWISE = ("quantization_config", "auto_map")  # packed numbers; code that may not be run


@contextmanager
def quiet() -> Iterator[None]:
    """No progress bars and no log lines of transformers and huggingface_hub inside; the settings come back after."""
    from huggingface_hub import utils as hub
    from transformers.utils import logging

    verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    hub_verbosity, hub_silent = hub.logging.get_verbosity(), hub.are_progress_bars_disabled()
    logging.set_verbosity(CRITICAL)
    hub.logging.set_verbosity(CRITICAL)
    logging.disable_progress_bar()
    hub.disable_progress_bars()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        hub.logging.set_verbosity(hub_verbosity)
        if bars:
            logging.enable_progress_bar()
        if not hub_silent:
            hub.enable_progress_bars()


def check_folder(folder: Path) -> None:
    """Say what a folder lacks before transformers says something else about it."""
    _check_adapter(folder)
    if not (folder / "config.json").is_file():
        names = ", ".join(sorted(file.name for file in folder.iterdir())[:6]) or "nothing"
        raise ModelError(
            "no model in this folder", where=folder, got=names, expected="config.json", do="name the folder that has it"
        )
    if has_weights(folder):
        _check_index(folder)
        return _check_pointers(folder)
    others = [file.name for pattern in ("*.h5", "*.msgpack") for file in folder.glob(pattern)]
    raise ModelError(
        "the folder has a config but no weights" if not others else "the weights are not PyTorch's",
        where=folder,
        got=", ".join(others) or None,
        expected="model.safetensors or pytorch_model.bin",
        do="download the weights, or save the model with save_pretrained",
    )


def _check_adapter(folder: Path) -> None:
    """An adapter beside weights would be left out, or applied to weights from elsewhere, as it pleases the library."""
    if (folder / "adapter_config.json").is_file():
        merge = "PeftModel.from_pretrained(model, folder).merge_and_unload().save_pretrained('merged')"
        raise ModelError(
            "the folder holds an adapter, which is not a model of its own",
            where=folder,
            got="adapter_config.json",
            expected="the weights of a whole model",
            do=f"merge it into its model with peft: {merge}",
        )


def load_weights(opener: Any, folder: Path, *, config: Any, dtype: Any, **options: Any) -> Any:
    """The model in float precision `dtype`, eval mode, no gradients.

    Weights that are missing and harmless are drawn from a fixed seed, so that one checkpoint is always one model.
    """
    import torch

    _check_size(opener, folder, config, options.get("gguf_file"))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        try:
            module, report = opener.from_pretrained(
                folder,
                config=config,
                dtype=dtype,
                weights_only=True,
                local_files_only=True,
                output_loading_info=True,
                **options,
            )
        except Exception as error:  # transformers, safetensors, torch and pickle each raise their own kinds
            raise _explain(error, folder) from error
    _check_missing((key for key in report["missing_keys"] if not _computed(module, key)), folder)
    _check_surplus(report["unexpected_keys"], module, folder)
    return module.eval().requires_grad_(False)


def _check_size(opener: Any, folder: Path, config: Any, gguf_file: str | None) -> None:
    """Refuse a config that leaves out its sizes, or that counts more blocks than there are tensors, before a model of
    that size is made and filled.

    Looked at where the weights are small; a model without memory is made for it.
    """
    files = list(folder.glob("*.safetensors")) if gguf_file is None else [folder / gguf_file]
    if not 0 < sum(file.stat().st_size for file in files) < _SMALL or any(hasattr(config, it) for it in _OTHERWISE):
        return
    try:
        held = [size for file in files for size in _sizes(file)]
        expected = _unlike(held, opener, config)
    except Exception:  # whatever is wrong, loading says it better
        return
    if expected is not None:
        raise ModelError(
            "the weights do not have the shapes that the config gives",
            where=folder,
            got=f"{sum(held):,} numbers in {len(held)} tensors",
            expected=expected,
            do="restore the config that belongs to these weights",
        )


def _unlike(held: list[int], opener: Any, config: Any) -> str | None:
    """What a config gives that tensors of these sizes cannot fill, in words."""
    import torch

    blocks = getattr(config, "num_hidden_layers", 0)
    if isinstance(blocks, int) and blocks > len(held):
        return f"{blocks:,} blocks"
    with torch.device("meta"):
        meant = getattr(opener, "from_config", None) or opener._from_config
        wanted = sum(tensor.numel() for tensor in meant(config).parameters())
    return f"some {wanted:,}" if wanted > _TIMES * sum(held) else None


def _sizes(file: Path) -> list[int]:
    """How many numbers each tensor of a file holds."""
    if file.suffix == ".gguf":
        return gguf.held(file)
    from safetensors import safe_open

    with safe_open(file, framework="np") as weights:
        return [prod(weights.get_slice(name).get_shape()) for name in weights.keys()]  # noqa: SIM118


def _check_index(folder: Path) -> None:
    """Weights in several files lie beside their index: what lies elsewhere would be read and not fingerprinted."""
    for index in folder.glob("*.index.json"):
        try:
            check_beside(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()), index)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise ModelError("this is not an index of weights", where=index, do="download it anew") from error


def _check_pointers(folder: Path) -> None:
    """A clone without Git LFS leaves small text files in the place of the weights."""
    for file in (*folder.glob("*.safetensors"), *folder.glob("*.bin")):
        with file.open("rb") as stream:
            if stream.read(24).startswith(b"version https://git-lfs"):
                raise ModelError(
                    "the weights are a Git LFS pointer, not the weights", where=file, do="run: git lfs pull"
                )


def _check_missing(missing: Iterable[str], folder: Path) -> None:
    lost = sorted(key for key in missing if not _UNUSED.search(key))
    if lost:
        raise ModelError(
            f"{len(lost)} weights are not in the checkpoint and would be random",
            where=folder,
            got=_some(lost),
            do="open the class that the checkpoint was saved from; `vocabulary --no-head` leaves out a head",
        )


def _computed(module: Any, key: str) -> bool:
    """Whether the class computes this tensor: initialised once more from nothing, it has the same values.

    Constants do not count: the ones of a norm are a beginning, not what was learned.
    """
    import torch

    path, _, name = key.rpartition(".")
    part = module.get_submodule(path)
    fresh, value = deepcopy(part), part.state_dict().get(name)
    if value is None or not value.is_floating_point() or value.unique().numel() < 2:
        return False
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(1)  # loading took 0
        for tensor in (*fresh.parameters(), *fresh.buffers()):
            if tensor.is_floating_point():
                tensor.fill_(torch.nan)
        module._init_weights(fresh)
    return torch.equal(fresh.state_dict()[name], value)


def _check_surplus(unexpected: Iterable[str], module: Any, folder: Path) -> None:
    """Heads may be left out; blocks may not. A key that differs from one of the model's by a number only is a block."""
    known = {re.sub(r"\d+", "#", key) for key in module.state_dict()}
    prefix = f"{getattr(module, 'base_model_prefix', '')}."
    cut = [key for key in unexpected if re.sub(r"\d+", "#", key.removeprefix(prefix)) in known]
    if cut:
        raise ModelError(
            "the checkpoint has blocks that its config does not count",
            where=folder,
            got=_some(sorted(cut)),
            do="restore the config.json that belongs to these weights",
        )


def _explain(error: Exception, folder: Path) -> ModelError:
    """The error of a foreign library in the words of this one."""
    import pickle

    kind, text = type(error).__name__, str(error)
    if isinstance(error, pickle.UnpicklingError) or "weights_only" in text or "Weights only load failed" in text:
        return ModelError(
            "the pickled weights hold more than tensors, and were not run",
            where=folder,
            got=first_line(error),
            do="get the safetensors version of the model",
        )
    if kind == "SafetensorError" or isinstance(error, EOFError) or "PytorchStreamReader" in text:
        return ModelError(
            "the weights file is damaged or incomplete",
            where=folder,
            got=first_line(error),
            do="delete it and download it again",
        )
    if "size mismatch" in text or "ignore_mismatched_sizes" in text:
        return ModelError(
            "the weights do not have the shapes that config.json gives",
            where=folder,
            got=first_line(error),
            do="restore the config.json that belongs to these weights",
        )
    return ModelError("the model cannot be loaded", where=folder, got=first_line(error))


def _some(keys: list[str]) -> str:
    return ", ".join(keys[:3]) + (f" and {len(keys) - 3} more" if len(keys) > 3 else "")
