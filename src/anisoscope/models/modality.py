"""What a model reads: text, speech or pictures; and which class opens it.

The class that AutoModel maps a config to says so by its `main_input_name`: `pixel_values` is vision, `input_values` and
`input_features` are speech, `input_ids` is text. `input_modalities` is not to be trusted by itself (it says `text` for
CvT), but it tells composites apart: a class whose main input is text and which lists another modality too (CLIP) has
several towers, and one has to be chosen. So does a class whose config has a part for text and one for vision (BLIP-2).
"""

from __future__ import annotations

from typing import Any, Literal, cast

from anisoscope.errors import ModelError, UsageError

Modality = Literal["text", "speech", "vision"]
MODALITIES: tuple[Modality, ...] = ("text", "speech", "vision")
TOWERS = {"text": "text_config", "vision": "vision_config", "speech": "audio_config"}

_BY_INPUT: dict[str, Modality] = {
    "input_ids": "text",
    "input_values": "speech",
    "input_features": "speech",
    "pixel_values": "vision",
}


def body_class(config: Any) -> type | None:
    """The class without a head that AutoModel would make of the config; None for a config that it does not know."""
    from transformers import AutoModel

    found = AutoModel._model_mapping.get(type(config), None)  # type: ignore[attr-defined]  # no public way to ask
    return found[0] if isinstance(found, tuple) else found


def is_composite(model: Any) -> bool:
    """Whether a class or module has several towers.

    It has if its config is made of one for text and one for vision, or if it takes another modality beside text.
    """
    parts = set(getattr(getattr(model, "config_class", None), "sub_configs", None) or ())
    if {"text_config", "vision_config"} <= parts:
        return True
    taken = getattr(model, "input_modalities", ())
    taken = {taken} if isinstance(taken, str) else set(taken or ())
    return getattr(model, "main_input_name", None) == "input_ids" and bool(taken - {"text"})


def modality_of(model: Any, *, override: str | None = None) -> Modality:
    """The modality of a model class or module, unless the caller knows better."""
    if override is not None:
        if override not in MODALITIES:
            raise UsageError("unknown modality", got=override, expected=" | ".join(MODALITIES))
        return cast(Modality, override)
    main_input = getattr(model, "main_input_name", None)
    if main_input not in _BY_INPUT:
        name = model.__name__ if isinstance(model, type) else type(model).__name__
        raise UsageError(
            f"cannot tell what {name} reads",
            got=f"main input {main_input!r}",
            do="choose: modality='text', 'speech' or 'vision'",
        )
    return _BY_INPUT[main_input]


def tower_config(config: Any, tower: str | None) -> Any:
    """The config of one tower of a composite model; an error that lists the towers if none was chosen."""
    there = [name for name, field in TOWERS.items() if getattr(config, field, None) is not None]
    if tower not in there:
        raise UsageError(
            f"a {config.model_type} model has several towers: choose one",
            got="none" if tower is None else repr(tower),
            expected=" | ".join(f"tower={name!r}" for name in there),
        )
    return getattr(config, TOWERS[tower])


def head_class(config: Any) -> Any:
    """The Auto class that opens the model with its language-model head, as `architectures` of the config says."""
    import transformers

    written = " ".join(config.architectures or ())
    causal = "CausalLM" in written or "LMHead" in written
    for opener, fits in (
        (transformers.AutoModelForSpeechSeq2Seq, config.is_encoder_decoder),
        (transformers.AutoModelForSeq2SeqLM, config.is_encoder_decoder),
        (transformers.AutoModelForMaskedLM, not causal),
        (transformers.AutoModelForCausalLM, True),
    ):
        if fits and type(config) in opener._model_mapping:
            return opener
    raise ModelError(
        "this kind of model has no language-model head",
        got=f"{config.model_type} ({written or 'no architectures in its config'})",
        do="open it without a head: `vocabulary --no-head`",
    )
