"""Small working processors: tokenizers made from one passage, feature extractors, Pillow image processors.

Each has the class of the published checkpoint and is saved in its format; vocabularies are small, for tiny tables.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from functools import cache
from typing import Any

import transformers as library
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

from anisoscope.models.extra.characterbert import CharacterBertTokenizer

transformers: Any = library  # its classes take more than their signatures say

PASSAGE = """The representations of a transformer drift together as it trains. A cloud of vectors that leaves the
origin looks narrow from there, although nothing about it has become narrow. Queries and keys drift as well; their
scores grow, and with them the sharpness of attention. We look at words, at characters, at bytes, at sounds and at
pictures, before and after the last normalisation, and ask each time how similar two of them are on average, and how
similar by chance."""


ASCII = [chr(code) for code in range(33, 127)]


def _words() -> list[str]:
    return re.findall(r"[a-z]+", PASSAGE.lower())


@cache
def _wordpieces(*specials: str) -> dict[str, int]:
    """Words, endings and every ASCII character at both places. Not trained: that trainer breaks ties at random."""
    endings = {f"##{word[-size:]}" for word in _words() for size in (2, 3) if len(word) > size}
    pieces = [*specials, *ASCII, *(f"##{letter}" for letter in ASCII), *sorted(endings), *sorted(set(_words()))]
    return {piece: index for index, piece in enumerate(dict.fromkeys(pieces))}


@cache
def _bytepairs(specials: tuple[str, ...], end: str = "") -> tuple[dict[str, int], list[tuple[str, str]]]:
    """Vocabulary and merges over bytes; with `end` (CLIP) the last piece of a word carries a suffix."""
    tokenizer = Tokenizer(models.BPE(end_of_word_suffix=end))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=700 if end else 400,
        special_tokens=list(specials) + ([byte + end for byte in sorted(alphabet)] if end else []),
        initial_alphabet=alphabet,
        end_of_word_suffix=end,
        show_progress=False,
    )
    tokenizer.train_from_iterator([PASSAGE], trainer)
    model = json.loads(tokenizer.to_str())["model"]
    return model["vocab"], [tuple(merge) for merge in model["merges"]]


@cache
def _sentencepieces() -> list[tuple[str, float]]:
    """Words and characters with their log-probabilities, as T5's vocabulary begins: <pad>, </s>, <unk>."""
    words = Counter(f"▁{word}" for word in _words())
    common = [(word, math.log(count / words.total())) for word, count in sorted(words.items())]
    letters = [(letter, -10.0) for letter in ["▁", *ASCII]]
    return [("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0), *common, *letters]


def bert() -> Any:
    return transformers.BertTokenizer(vocab=_wordpieces("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"))


def mpnet() -> Any:
    return transformers.MPNetTokenizer(vocab=_wordpieces("<s>", "<pad>", "</s>", "[UNK]", "<mask>"))


def roberta() -> Any:
    vocab, merges = _bytepairs(("<s>", "<pad>", "</s>", "<unk>", "<mask>"))
    return transformers.RobertaTokenizer(vocab=vocab, merges=merges)


def gpt2() -> Any:
    vocab, merges = _bytepairs(("<|endoftext|>",))
    return transformers.GPT2Tokenizer(vocab=vocab, merges=merges)


def opt() -> Any:
    """OPT uses GPT-2's class with </s> put before every text."""
    vocab, merges = _bytepairs(("<s>", "<pad>", "</s>", "<unk>"))
    names = {"bos_token": "</s>", "eos_token": "</s>", "unk_token": "</s>", "pad_token": "<pad>"}
    return transformers.GPT2Tokenizer(vocab=vocab, merges=merges, add_bos_token=True, **names)


def gpt_neox() -> Any:
    vocab, merges = _bytepairs(("<|endoftext|>", "<|padding|>"))
    return transformers.GPTNeoXTokenizer(vocab=vocab, merges=merges)


def clip_text() -> Any:
    vocab, merges = _bytepairs(("<|startoftext|>", "<|endoftext|>"), end="</w>")
    return transformers.CLIPTokenizer(vocab=vocab, merges=merges, model_max_length=24)


def whisper_text() -> Any:
    specials = ("<|endoftext|>", "<|startoftranscript|>", "<|en|>", "<|transcribe|>", "<|notimestamps|>")
    vocab, merges = _bytepairs(specials)
    return transformers.WhisperTokenizer(vocab=vocab, merges=merges, extra_special_tokens=list(specials[1:]))


def _generic_tokenizer(first: str, last: str | None, padding: str, *, template: bool = True) -> Any:
    """A tokenizer.json with no class of its own, as Llama, Falcon and ModernBERT publish."""
    specials = tuple(dict.fromkeys(name for name in (padding, first, last, "[UNK]", "[MASK]") if name))
    vocab, merges = _bytepairs(specials)
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    if template:
        ends = [name for name in (first, last) if name]
        pattern = f"{first} $A {last}" if last else f"{first} $A"
        tokenizer.post_processor = processors.TemplateProcessing(
            single=pattern, special_tokens=[(name, vocab[name]) for name in ends]
        )
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token=first, eos_token=last or first, pad_token=padding, mask_token="[MASK]"
    )


def images(kind: str, size: int) -> Any:
    """A Pillow image processor; ConvNeXt's resizes the shortest edge, the others both."""
    shape = {"shortest_edge": size} if kind in ("ConvNext", "CLIP") else {"height": size, "width": size}
    options: dict[str, Any] = {"size": shape}
    if kind not in ("ConvNext", "ViT", "Segformer"):
        options["crop_size"] = {"height": size, "width": size}
    processor = getattr(transformers, f"{kind}ImageProcessorPil")
    return processor(image_mean=[0.485, 0.456, 0.406], image_std=[0.229, 0.224, 0.225], **options)


def waves() -> Any:
    return transformers.Wav2Vec2FeatureExtractor(return_attention_mask=False)


def stable_waves() -> Any:
    return transformers.Wav2Vec2FeatureExtractor(return_attention_mask=True)


def whisper() -> Any:
    """Whisper's window, 2 seconds long instead of 30, beside the tokenizer of its decoder."""
    extractor = transformers.WhisperFeatureExtractor(feature_size=16, chunk_length=2)
    return transformers.WhisperProcessor(extractor, whisper_text())


def llama() -> Any:
    return _generic_tokenizer("<s>", None, "<unk>")


def falcon() -> Any:
    return _generic_tokenizer("<|endoftext|>", None, "<|endoftext|>", template=False)


def modernbert() -> Any:
    return _generic_tokenizer("[CLS]", "[SEP]", "[PAD]")


def byt5() -> Any:
    return transformers.ByT5Tokenizer()


def clip() -> Any:
    return transformers.CLIPProcessor(images("CLIP", 32), clip_text())


def t5() -> Any:
    return transformers.T5Tokenizer(vocab=_sentencepieces())


def character_bert() -> Any:
    return CharacterBertTokenizer()
