"""What turns inputs into tensors: tokenizer, feature extractor or image processor, and how long an input may be.

A folder without tokenizer files makes AutoTokenizer return an empty tokenizer and no error; here it is an error. Image
processors are always those of Pillow, whichever others are installed: a picture gives the same pixels everywhere.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from anisoscope.errors import InputError, ModelError
from anisoscope.models.byte_tokenizer import ByteTokenizer
from anisoscope.models.hub import fetch_tokenizer, first_line
from anisoscope.models.locate import locate


class MissingTokenizer:
    """Stands in for the tokenizer of a model that has none: fine for token ids, an error as soon as it gets a text."""

    def __init__(self, error: ModelError) -> None:
        self.error = error

    def __call__(self, *_: Any, **__: Any) -> Any:
        raise self.error


def open_processor(folder: Path, *, modality: str, config: Any, **options: Any) -> Any:
    """The processor of a model folder: a tokenizer, an image processor, or a feature extractor.

    A text model without a tokenizer that fits gets a `MissingTokenizer`: its data may be token ids. A speech
    model that also writes text (Whisper) gets both parts: `.feature_extractor` and `.tokenizer`.
    """
    import transformers

    openers = {
        "text": lambda: _open_tokenizer(folder, config, **options),
        "speech": lambda: _open_speech(folder, config, **options),
        "vision": lambda: transformers.AutoImageProcessor.from_pretrained(folder, backend="pil", **options),
    }
    try:
        return openers[modality]()
    except ModelError as error:
        return MissingTokenizer(error)
    except _FAILURES as error:
        refusal = ModelError(
            f"the model has no usable {_KINDS[modality]}", where=folder, got=first_line(error), do=_ADVICE[modality]
        )
        if modality == "text":
            return MissingTokenizer(refusal)
        raise refusal from error


def tokenizer_folder(where: str | Path | type[bytes] | None, *, models_dir: str | Path | None = None) -> Path | None:
    """The folder of a tokenizer that is not beside its model: a folder, or what a hub id means; None for `bytes`."""
    if where is None or where is bytes or where == "bytes":
        return None
    assert isinstance(where, str | Path)
    place = locate(where, models_dir=models_dir)
    return place.path or fetch_tokenizer(place.name)


def open_tokenizer(folder: Path | None, module: Any, **options: Any) -> Any:
    """The tokenizer of a folder that is not the model's; without a folder, bytes."""
    if folder is None:
        return ByteTokenizer(vocabulary_rows(module))
    try:
        return _open_tokenizer(folder, module.config, elsewhere=True, **options)
    except _FAILURES as error:
        raise ModelError(
            "this is not a tokenizer that transformers can open",
            where=folder,
            got=first_line(error),
            expected="tokenizer.json, vocab.txt or another file of a tokenizer",
        ) from error


def vocabulary_rows(module: Any) -> int | None:
    """How many ids the model has an embedding for, or None where that cannot be told (CANINE hashes its ids)."""
    stated = getattr(getattr(module, "config", None), "vocab_size", None)
    try:
        weight = getattr(module.get_input_embeddings(), "weight", None)
    except (AttributeError, NotImplementedError):
        weight = None
    if not isinstance(stated, int):
        return None
    return stated if weight is None or weight.dim() != 2 else weight.shape[0]


def check_ids(ids: Any, rows: int | None, *, where: str) -> None:
    """Refuse token ids that have none of so many embeddings."""
    if rows is None or not len(ids):
        return
    wrong = next((one for one in (max(ids), min(ids)) if not 0 <= one < rows), None)
    if wrong is not None:
        raise InputError(
            "a token id for which the model has no embedding",
            where=where,
            got=wrong,
            expected=f"ids from 0 to {rows - 1}",
            do="use the tokenizer that belongs to this model",
        )


_FAILURES = (OSError, ValueError, TypeError, KeyError, AttributeError, ImportError)
_GIVE = "put its files into the folder, or pass it: open_model(…, processor=…)"
_ADVICE = {
    "text": "put its files into the folder, or say where they are: --tokenizer FOLDER, a hub id, or bytes",
    "speech": _GIVE,
    "vision": _GIVE,
}
_KINDS = {"text": "tokenizer", "speech": "feature extractor", "vision": "image processor"}


def _open_speech(folder: Path, config: Any, **options: Any) -> Any:
    import transformers

    if config.is_encoder_decoder and any((folder / name).is_file() for name in ("tokenizer.json", "vocab.json")):
        return transformers.AutoProcessor.from_pretrained(folder, **options)
    return transformers.AutoFeatureExtractor.from_pretrained(folder, **options)


def _open_tokenizer(folder: Path, config: Any, *, elsewhere: bool = False, **options: Any) -> Any:
    """A tokenizer with a vocabulary that fits the model's. One without padding gets it: masks hide it anyway."""
    import transformers

    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder, **options)
    except Exception as error:
        if type(error) is Exception:  # what the tokenizers library raises of a file that it cannot read
            raise ValueError(str(error)) from error
        raise
    needs_files = bool(type(tokenizer).vocab_files_names)  # ByT5, CANINE and CharacterBERT spell: they have none
    rows = getattr(config, "vocab_size", None)
    too_few = len(tokenizer) < rows / 2 if rows is not None and not elsewhere else not len(tokenizer)
    if needs_files and too_few:
        raise ModelError(
            "the tokenizer does not fit the model: its vocabulary is empty or another one",
            where=folder,
            got=f"{len(tokenizer)} tokens",
            expected=f"about {rows}",
            do=_ADVICE["text"],
        )
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token or tokenizer.unk_token or tokenizer.convert_ids_to_tokens(0)
    return tokenizer


def longest_input(module: Any) -> int | None:
    """How many tokens the model can take, or None where nothing in it limits them (T5, Mamba).

    A position table with a padding row (RoBERTa, MPNet) is shorter by the rows up to and including it: 514 rows are 512
    positions. What a tokenizer states is a habit of its authors, not a limit, and is ignored.
    """
    config = getattr(module, "config", None)
    stated = [getattr(config, field, None) for field in ("max_position_embeddings", "max_length_inputs")]
    limits = [value for value in stated if isinstance(value, int) and value > 0]
    if not limits:
        return None
    for path, part in module.named_modules():
        if path.endswith("position_embeddings") and getattr(part, "padding_idx", None) is not None:
            limits.append(len(part.weight) - part.padding_idx - 1)  # I-BERT's table has rows, but no `num_embeddings`
    return min(limits)
