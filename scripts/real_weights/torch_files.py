"""Turn weights that were published under other names into folders that transformers opens.

Each conversion is a table of names; the values are not touched. The tests compare the result with the forward pass of
the original definition, written out independently.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import Regex, Tokenizer, models, pre_tokenizers, processors
from torch import Tensor

transformers.utils.logging.disable_progress_bar()

_WHISPER_NAMES = (
    (r"\.blocks\.", ".layers."),
    (r"\.cross_attn_ln\.", ".encoder_attn_layer_norm."),
    (r"\.attn_ln\.", ".self_attn_layer_norm."),
    (r"\.mlp_ln\.", ".final_layer_norm."),
    (r"\.cross_attn\.", ".encoder_attn."),
    (r"\.attn\.", ".self_attn."),
    (r"attn\.query\.", "attn.q_proj."),
    (r"attn\.key\.", "attn.k_proj."),
    (r"attn\.value\.", "attn.v_proj."),
    (r"attn\.out\.", "attn.out_proj."),
    (r"\.mlp\.0\.", ".fc1."),
    (r"\.mlp\.2\.", ".fc2."),
    (r"\.positional_embedding$", ".embed_positions.weight"),
    (r"\.token_embedding\.", ".embed_tokens."),
    (r"^encoder\.ln_post\.", "encoder.layer_norm."),
    (r"^decoder\.ln\.", "decoder.layer_norm."),
)

_MOBILENET_NAMES = (
    (r"^features\.0\.0\.", "conv_stem.first_conv.convolution."),
    (r"^features\.0\.1\.", "conv_stem.first_conv.normalization."),
    (r"^features\.1\.conv\.0\.0\.", "conv_stem.conv_3x3.convolution."),
    (r"^features\.1\.conv\.0\.1\.", "conv_stem.conv_3x3.normalization."),
    (r"^features\.1\.conv\.1\.", "conv_stem.reduce_1x1.convolution."),
    (r"^features\.1\.conv\.2\.", "conv_stem.reduce_1x1.normalization."),
    (r"^features\.18\.0\.", "conv_1x1.convolution."),
    (r"^features\.18\.1\.", "conv_1x1.normalization."),
    (r"\.conv\.0\.0\.", ".expand_1x1.convolution."),
    (r"\.conv\.0\.1\.", ".expand_1x1.normalization."),
    (r"\.conv\.1\.0\.", ".conv_3x3.convolution."),
    (r"\.conv\.1\.1\.", ".conv_3x3.normalization."),
    (r"\.conv\.2\.", ".reduce_1x1.convolution."),
    (r"\.conv\.3\.", ".reduce_1x1.normalization."),
)

# One token of a SMILES string: an atom in brackets, an element, a bond, a ring, a branch.
_SMILES = (
    r"(\%\([0-9]{3}\)|\[[^\]]+]|Br?|Cl?|N|O|S|P|F|I|b|c|n|o|s|p"
    r"|\||\(|\)|\.|=|#|-|\+|\\|\/|:|~|@|\?|>>?|\*|\$|\%[0-9]{2}|[0-9])"
)


def whisper(checkpoint: Path, tokenizer: Path, target: Path) -> None:
    """A Whisper checkpoint of its authors, as a folder with tokenizer and feature extractor."""
    read = torch.load(checkpoint, map_location="cpu", weights_only=True)
    model = transformers.WhisperForConditionalGeneration(whisper_config(read["dims"]))
    _fill(model.model, rename_whisper(read["model_state_dict"]), spare=())
    model.half().save_pretrained(target)  # as published
    text = transformers.WhisperTokenizer(tokenizer_file=str(tokenizer))
    text.save_pretrained(target)
    transformers.WhisperFeatureExtractor(feature_size=read["dims"]["n_mels"]).save_pretrained(target)


def whisper_config(sizes: Mapping[str, int]) -> transformers.WhisperConfig:
    """The sizes of an English Whisper in the words of transformers."""
    return transformers.WhisperConfig(
        vocab_size=sizes["n_vocab"],
        num_mel_bins=sizes["n_mels"],
        d_model=sizes["n_audio_state"],
        encoder_layers=sizes["n_audio_layer"],
        encoder_attention_heads=sizes["n_audio_head"],
        encoder_ffn_dim=4 * sizes["n_audio_state"],
        max_source_positions=sizes["n_audio_ctx"],
        decoder_layers=sizes["n_text_layer"],
        decoder_attention_heads=sizes["n_text_head"],
        decoder_ffn_dim=4 * sizes["n_text_state"],
        max_target_positions=sizes["n_text_ctx"],
        decoder_start_token_id=50257,
        bos_token_id=50256,
        eos_token_id=50256,
        pad_token_id=50256,
    )


def rename_whisper(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The authors' names to those of WhisperModel."""
    return {_rename(key, _WHISPER_NAMES): weight for key, weight in weights.items()}


def mobilenet(checkpoint: Path, target: Path) -> None:
    """torchvision's MobileNetV2, as a folder with image processor: symmetric padding and batch norms of eps 1e-5."""
    weights = torch.load(checkpoint, map_location="cpu", weights_only=True)
    model = transformers.MobileNetV2ForImageClassification(mobilenet_config())
    model.classifier.load_state_dict({name: weights[f"classifier.1.{name}"] for name in ("weight", "bias")})
    _fill(model.mobilenet_v2, rename_mobilenet(weights), spare=("classifier.1.weight", "classifier.1.bias"))
    model.save_pretrained(target)
    transformers.MobileNetV2ImageProcessorPil(
        size={"shortest_edge": 256},
        crop_size={"height": 224, "width": 224},
        resample=2,
        image_mean=[0.485, 0.456, 0.406],
        image_std=[0.229, 0.224, 0.225],
    ).save_pretrained(target)


def mobilenet_config() -> transformers.MobileNetV2Config:
    """What torchvision's definition says where it differs from the one of TensorFlow."""
    return transformers.MobileNetV2Config(
        tf_padding=False, layer_norm_eps=1e-5, classifier_dropout_prob=0.2, num_labels=1000
    )


def rename_mobilenet(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """torchvision's names to those of MobileNetV2Model; its blocks begin at features.2."""
    renamed = {}
    for key, weight in weights.items():
        name = _rename(key, _MOBILENET_NAMES)
        renamed[re.sub(r"^features\.(\d+)\.", lambda found: f"layer.{int(found[1]) - 2}.", name)] = weight
    return renamed


def reaction_bert(target: Path) -> None:
    """Complete a folder of 2020: say its architecture, and write the tokenizer of reactions as a file."""
    file = target / "config.json"
    config = json.loads(file.read_text())
    file.write_text(json.dumps({**config, "model_type": "bert", "pad_token_id": 0}, indent=2))
    vocabulary = {word: index for index, word in enumerate((target / "vocab.txt").read_text().splitlines())}
    tokenizer = Tokenizer(models.WordLevel(vocab=vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(_SMILES), behavior="removed", invert=True)
    ends = [(name, vocabulary[name]) for name in ("[CLS]", "[SEP]")]
    tokenizer.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=ends)
    names = {f"{name}_token": f"[{name.upper()}]" for name in ("cls", "sep", "unk", "pad", "mask")}
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_max_length=512, **names)
    fast.save_pretrained(target)
    (target / "vocab.txt").unlink()  # a tokenizer of words would read it otherwise


def antiberty(target: Path, vocabulary: list[str]) -> None:
    """BERT over antibodies: heads for species and chain are dropped, and the tokenizer of single letters is written."""
    file = target / "pytorch_model.bin"
    weights = torch.load(file, map_location="cpu", weights_only=True)
    config = transformers.BertConfig.from_json_file(target / "config.json")
    config.architectures = None
    model = transformers.BertModel(config, add_pooling_layer=False)
    own = {name.removeprefix("bert."): weight for name, weight in weights.items() if name.startswith("bert.")}
    model.load_state_dict({name: weight for name, weight in own.items() if name in model.state_dict()}, strict=True)
    file.unlink()
    model.save_pretrained(target)
    letters_tokenizer(vocabulary).save_pretrained(target)


def letters_tokenizer(vocabulary: list[str]) -> transformers.PreTrainedTokenizerFast:
    """One token per letter, between [CLS] and [SEP]; spaces and line ends are passed over."""
    words = {word: index for index, word in enumerate(vocabulary)}
    tokenizer = Tokenizer(models.WordLevel(vocab=words, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Split(Regex("."), behavior="isolated")]
    )
    ends = [(name, words[name]) for name in ("[CLS]", "[SEP]")]
    tokenizer.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=ends)
    names = {f"{name}_token": f"[{name.upper()}]" for name in ("cls", "sep", "unk", "pad", "mask")}
    return transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_max_length=512, **names)


def _rename(key: str, table: tuple[tuple[str, str], ...]) -> str:
    for pattern, name in table:
        key = re.sub(pattern, name, key)
    return key


def _fill(module: Any, weights: Mapping[str, Tensor], *, spare: tuple[str, ...]) -> None:
    """Load every weight, each exactly once, but for those that another part takes."""
    module.load_state_dict({key: weight for key, weight in weights.items() if key not in spare}, strict=True)
