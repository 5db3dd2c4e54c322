"""What turns inputs into tensors: tokenizer, feature extractor or image processor, and how long an input may be.

A folder without tokenizer files makes AutoTokenizer return an empty tokenizer and no error; here it is an error. Image
processors are always those of Pillow, whichever others are installed: a picture gives the same pixels everywhere.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from anisoscope.errors import ModelError
from anisoscope.models.hub import first_line


def open_processor(folder: Path, *, modality: str, config: Any, **options: Any) -> Any:
    """The processor of a model folder: a tokenizer, an image processor, or a feature extractor.

    A speech model that also writes text (Whisper) gets both parts: `.feature_extractor` and `.tokenizer`.
    """
    import transformers

    openers = {
        "text": lambda: _open_tokenizer(folder, config, **options),
        "speech": lambda: _open_speech(folder, config, **options),
        "vision": lambda: transformers.AutoImageProcessor.from_pretrained(folder, backend="pil", **options),
    }
    try:
        return openers[modality]()
    except (OSError, ValueError, TypeError, KeyError, ImportError) as error:
        raise ModelError(
            f"the model has no usable {_KINDS[modality]}",
            where=folder,
            got=first_line(error),
            do="put its files into the folder, or give it: open_model(…, processor=…)",
        ) from error


_KINDS = {"text": "tokenizer", "speech": "feature extractor", "vision": "image processor"}


def _open_speech(folder: Path, config: Any, **options: Any) -> Any:
    import transformers

    if config.is_encoder_decoder and any((folder / name).is_file() for name in ("tokenizer.json", "vocab.json")):
        return transformers.AutoProcessor.from_pretrained(folder, **options)
    return transformers.AutoFeatureExtractor.from_pretrained(folder, **options)


def _open_tokenizer(folder: Path, config: Any, **options: Any) -> Any:
    """A tokenizer with a vocabulary that fits the model's. One without padding gets it: masks hide it anyway."""
    import transformers

    tokenizer = transformers.AutoTokenizer.from_pretrained(folder, **options)
    needs_files = bool(type(tokenizer).vocab_files_names)  # ByT5, CANINE and CharacterBERT spell: they have none
    rows = getattr(config, "vocab_size", None)
    if needs_files and rows is not None and len(tokenizer) < rows / 2:
        raise ModelError(
            "the tokenizer does not fit the model: its vocabulary is empty or another one",
            where=folder,
            got=f"{len(tokenizer)} tokens",
            expected=f"about {rows}",
            do="put the tokenizer's files (tokenizer.json, vocab.txt, …) beside the weights",
        )
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token or tokenizer.unk_token or tokenizer.convert_ids_to_tokens(0)
    return tokenizer


def longest_input(module: Any) -> int | None:
    """How many tokens the model can take, or None where nothing in it limits them (T5, Mamba).

    A position table with a padding row (RoBERTa, MPNet) is shorter by the rows up to and including it: 514 rows are 512
    positions. What a tokenizer states is a habit of its authors, not a limit, and is not asked.
    """
    config = getattr(module, "config", None)
    stated = [getattr(config, field, None) for field in ("max_position_embeddings", "max_length_inputs")]
    limits = [value for value in stated if isinstance(value, int) and value > 0]
    if not limits:
        return None
    for path, part in module.named_modules():
        if path.endswith("position_embeddings") and getattr(part, "padding_idx", None) is not None:
            limits.append(part.num_embeddings - part.padding_idx - 1)
    return min(limits)
