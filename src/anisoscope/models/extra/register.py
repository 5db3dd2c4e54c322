"""The architectures that no library has, made known to the Auto classes: CharacterBERT, MANTa, VAN and TinyViT.

After `register()`, a folder or a hub id whose config.json says `character_bert`, `manta`, `van` or `tinyvit` opens with
AutoConfig, AutoModel, AutoTokenizer and AutoImageProcessor as if the library had it.
No remote code is needed, and none is run.
"""

from __future__ import annotations


def register() -> None:
    """Register the architectures; calling it again changes nothing."""
    from transformers import (
        AutoConfig,
        AutoImageProcessor,
        AutoModel,
        AutoModelForImageClassification,
        AutoModelForMaskedLM,
        AutoModelForSeq2SeqLM,
        AutoTokenizer,
        ByT5Tokenizer,
    )

    from anisoscope.models.extra import characterbert, manta, tinyvit, van

    for config in (characterbert.CharacterBertConfig, manta.MantaConfig, van.VanConfig, tinyvit.TinyVitConfig):
        AutoConfig.register(config.model_type, config, exist_ok=True)
    models = (
        (AutoModel, characterbert.CharacterBertModel),
        (AutoModelForMaskedLM, characterbert.CharacterBertForMaskedLM),
        (AutoModel, manta.MantaForConditionalGeneration),
        (AutoModelForSeq2SeqLM, manta.MantaForConditionalGeneration),
        (AutoModel, van.VanModel),
        (AutoModel, tinyvit.TinyVitModel),
        (AutoModelForImageClassification, van.VanForImageClassification),
    )
    for auto, model in models:
        auto.register(model.config_class, model, exist_ok=True)
    AutoTokenizer.register(characterbert.CharacterBertConfig, characterbert.CharacterBertTokenizer, exist_ok=True)
    AutoTokenizer.register(manta.MantaConfig, ByT5Tokenizer, exist_ok=True)
    AutoImageProcessor.register(van.VanConfig, image_processor_classes={"pil": van.VanImageProcessor}, exist_ok=True)
