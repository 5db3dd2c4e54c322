"""Small sentence-transformers folders, written by the library itself, and real ones where they are on this machine."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Dense, Normalize, Pooling, Transformer
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

MIRROR = Path(os.environ.get("ANISOSCOPE_MODELS", "/tmp/weights"))
MINILM = MIRROR / "sentence-transformers/all-MiniLM-L6-v2"
REAL = (
    MINILM,
    MIRROR / "sentence-transformers/all-mpnet-base-v2",
    MIRROR / "pypi/sre-embedding-model",
    MIRROR / "thenlper/gte-small",
    MIRROR / "intfloat/e5-small",
)
WORDS = ["the", "a", "cat", "dog", "sat", "on", "mat", "runs", "home", "red", "blue"]
WORDS += ["query", "document", ":", ".", "The", "Cat"]
TEXTS = [
    "the cat sat on the mat .",
    "a dog runs home",
    "The Cat",
    "red",
    "the blue dog sat on the red mat and runs home " * 4,
    "a cat : a dog .",
]


def tiny_bert(folder: Path, *, seed: int = 0) -> Path:
    """A random BERT of 16 dimensions with a tokenizer of whole words, that keeps upper case."""
    names = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *dict.fromkeys(WORDS)]
    words = Tokenizer(models.WordLevel({word: k for k, word in enumerate(names)}, unk_token="[UNK]"))
    words.normalizer = normalizers.Sequence([normalizers.NFC()])  # pyright: ignore
    words.pre_tokenizer = pre_tokenizers.Whitespace()  # pyright: ignore
    words.post_processor = processors.TemplateProcessing(  # pyright: ignore
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    specials = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    PreTrainedTokenizerFast(tokenizer_object=words, **specials).save_pretrained(folder)
    torch.manual_seed(seed)
    sizes: dict[str, Any] = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = BertConfig(
        vocab_size=len(names), intermediate_size=24, max_position_embeddings=64, initializer_range=0.5, **sizes
    )
    BertModel(config, add_pooling_layer=False).save_pretrained(folder)
    return folder


def sentence_folder(
    folder: Path,
    *,
    pooling: str | tuple[str, ...] = "mean",
    dense: tuple[Dense, ...] = (),
    normalize: bool = True,
    length: int = 12,
    lower: bool = False,
    include_prompt: bool = True,
    prompts: dict[str, str] | None = None,
    default_prompt: str | None = None,
) -> Path:
    """A sentence-transformers folder around the tiny BERT."""
    base = tiny_bert(folder.parent / f"{folder.name}-base")
    transformer = Transformer(str(base), max_seq_length=length, do_lower_case=lower)
    parts: list[Any] = [transformer, Pooling(16, pooling_mode=pooling, include_prompt=include_prompt)]  # pyright: ignore
    parts += [*dense, *([Normalize()] if normalize else [])]
    model = SentenceTransformer(modules=parts, prompts=prompts, default_prompt_name=default_prompt, device="cpu")
    model.save_pretrained(str(folder), create_model_card=False)
    return folder


def edit_json(file: Path, **changes: Any) -> None:
    """Change some fields of a JSON file."""
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))
