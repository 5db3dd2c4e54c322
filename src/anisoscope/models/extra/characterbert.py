"""CharacterBERT: BERT whose word-piece table is a convolution over characters, so that one position is one whole word.

El Boukkouri, Ferret, Lavergne, Noji, Zweigenbaum, Tsujii, *CharacterBERT: Reconciling ELMo and BERT for Word-Level
Open-Vocabulary Representations From Characters*, 2020, https://arxiv.org/abs/2010.10392. No library has it; this one
loads `helboukkouri/character-bert` and `helboukkouri/character-bert-medical`.

A word is 50 character ids. Over their 16-dimensional vectors run convolutions of widths 1 to 7; the maximum over the
word of each of the F = 2048 filters goes through two highway layers and a projection:

    z = Wx + b ∈ R²ᶠ,   x ← σ(z₂) x + (1 − σ(z₂)) relu(z₁)        (first half candidate, second half gate)

Word, position and type vectors are added and normalised; then it is BERT, with the library's own layers, so queries and
keys pass through its AttentionInterface. Cost: a word takes 27 million multiplications before the encoder and 85
million in it, so equal words of a batch are looked at once, and never more than 1024 at a time.

Traps: every code is shifted by one, so that padding is 0 and *not* the filler 261 that ends a short word; filler and
padding are ordinary vectors to the convolutions; `hidden_states[0]` is the embedding after its LayerNorm; a fresh model
has a character table of zeros, as the authors' has, and so gives every word the same vector.
"""
# ruff: noqa: RUF012 - the library declares these class attributes as mutable, and a ClassVar would contradict it

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import torch
from huggingface_hub.dataclasses import strict
from torch import Tensor, nn
from transformers import BatchEncoding, PreTrainedConfig, PreTrainedModel, PreTrainedTokenizer
from transformers import initialization as init
from transformers.activations import ACT2FN
from transformers.masking_utils import create_bidirectional_mask
from transformers.modeling_outputs import BaseModelOutputWithPooling, MaskedLMOutput
from transformers.models.bert.modeling_bert import (
    BertEncoder,
    BertLayer,
    BertPooler,
    BertPredictionHeadTransform,
    BertSelfAttention,
)
from transformers.models.bert.tokenization_bert_legacy import BasicTokenizer
from transformers.utils.generic import can_return_tuple
from transformers.utils.output_capturing import capture_outputs

from anisoscope.errors import InputError

CHARACTERS = 263  # padding, 256 bytes, sentence begin and end, word begin and end, filler, mask
WORDS_AT_ONCE = 1024  # the widest filter holds 44 positions × 1024 channels a word: 185 MB

_CODES = {"[CLS]": 257, "[SEP]": 258, "[MASK]": 262}
_WORD_BEGIN, _WORD_END, _FILLER = 259, 260, 261


@strict
class CharacterBertConfig(PreTrainedConfig):
    """The sizes of a CharacterBERT; the defaults are the one published size."""

    model_type = "character_bert"

    character_embeddings_dim: int = 16
    cnn_activation: str = "relu"
    cnn_filters: list | tuple = ((1, 32), (2, 32), (3, 64), (4, 128), (5, 256), (6, 512), (7, 1024))  # (width, count)
    num_highway_layers: int = 2
    max_word_length: int = 50
    hidden_size: int = 768
    num_hidden_layers: int = 12
    num_attention_heads: int = 12
    intermediate_size: int = 3072
    hidden_act: str = "gelu"
    hidden_dropout_prob: float | int = 0.1
    attention_probs_dropout_prob: float | int = 0.1
    max_position_embeddings: int = 512
    type_vocab_size: int = 2
    mlm_vocab_size: int = 100_000
    initializer_range: float = 0.02
    layer_norm_eps: float = 1e-12
    pad_token_id: int | None = 0
    tie_word_embeddings: bool = False
    is_decoder: bool = False  # read by the library's BERT layers, as is the next
    add_cross_attention: bool = False


class Highways(nn.Module):
    """Layers that pass on a learnt part of their input and replace the rest."""

    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        self._layers = nn.ModuleList(nn.Linear(width, 2 * width) for _ in range(layers))

    def forward(self, features: Tensor) -> Tensor:
        for layer in self._layers:
            candidate, gate = layer(features).chunk(2, dim=-1)
            features = torch.lerp(candidate.relu(), features, gate.sigmoid())
        return features


class CharacterCnn(nn.Module):
    """The vector of a word from its characters: (B, L, 50) ids to (B, L, d)."""

    def __init__(self, config: CharacterBertConfig) -> None:
        super().__init__()
        size = config.character_embeddings_dim
        self._char_embedding_weights = nn.Parameter(torch.zeros(CHARACTERS, size))
        for index, (width, count) in enumerate(config.cnn_filters):
            self.add_module(f"char_conv_{index}", nn.Conv1d(size, count, width))
        total = sum(count for _, count in config.cnn_filters)
        self._activation = ACT2FN[config.cnn_activation]
        self._highways = Highways(total, config.num_highway_layers)
        self._projection = nn.Linear(total, config.hidden_size)

    def forward(self, characters: Tensor) -> Tensor:
        words, index = characters.flatten(0, 1).unique(dim=0, return_inverse=True)
        vectors = torch.cat([self._look(some) for some in words.split(WORDS_AT_ONCE)])
        return vectors[index].unflatten(0, characters.shape[:2])

    def _look(self, words: Tensor) -> Tensor:
        letters = nn.functional.embedding(words, self._char_embedding_weights).mT  # (words, 16, 50)
        filters = [part for part in self.children() if isinstance(part, nn.Conv1d)]
        strongest = torch.cat([convolve(letters).amax(-1) for convolve in filters], dim=-1)  # (words, F)
        return self._projection(self._highways(self._activation(strongest)))


class CharacterBertEmbeddings(nn.Module):
    """Word, position and type vectors, added and normalised. Positions always start at 0."""

    def __init__(self, config: CharacterBertConfig) -> None:
        super().__init__()
        self.word_embeddings = CharacterCnn(config)
        self.position_embeddings = nn.Embedding(config.max_position_embeddings, config.hidden_size)
        self.token_type_embeddings = nn.Embedding(config.type_vocab_size, config.hidden_size)
        self.LayerNorm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)

    def forward(self, characters: Tensor, token_types: Tensor | None) -> Tensor:
        if token_types is None:
            token_types = torch.zeros_like(characters[..., 0])
        summed = self.word_embeddings(characters) + self.token_type_embeddings(token_types)
        return self.dropout(self.LayerNorm(summed + self.position_embeddings.weight[: characters.shape[1]]))


class CharacterBertPreTrainedModel(PreTrainedModel):
    config: CharacterBertConfig
    config_class = CharacterBertConfig
    base_model_prefix = "character_bert"
    supports_gradient_checkpointing = True
    _supports_sdpa = True
    _supports_flash_attn = True
    _supports_flex_attn = True
    _supports_attention_backend = True
    _no_split_modules = ["CharacterBertEmbeddings", "BertLayer"]
    _can_record_outputs = {"hidden_states": BertLayer, "attentions": BertSelfAttention}
    _keys_to_ignore_on_load_unexpected = [r"embeddings\.position_ids$", r"^cls\."]

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        """Linear layers and tables N(0, 0.02²), biases (that of the gates too) 0, convolutions as PyTorch has them."""
        super()._init_weights(module)
        if isinstance(module, nn.Conv1d):
            module.reset_parameters()
        elif isinstance(module, CharacterCnn):
            init.zeros_(module._char_embedding_weights)
        elif isinstance(module, CharacterBertPredictions):
            init.zeros_(module.bias)


class CharacterBertModel(CharacterBertPreTrainedModel):
    """The encoder, with BERT's tanh pooler over the first position."""

    def __init__(self, config: CharacterBertConfig) -> None:
        super().__init__(config)
        self.embeddings = CharacterBertEmbeddings(config)
        self.encoder = BertEncoder(config)
        self.pooler = BertPooler(config)
        self.post_init()

    def get_input_embeddings(self) -> nn.Module:
        return self.embeddings.word_embeddings

    @capture_outputs
    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        **kwargs: Any,
    ) -> BaseModelOutputWithPooling:
        self._check(input_ids)
        embedded = self.embeddings(input_ids, token_type_ids)
        mask = create_bidirectional_mask(config=self.config, inputs_embeds=embedded, attention_mask=attention_mask)
        last = self.encoder(embedded, attention_mask=mask, **kwargs).last_hidden_state
        return BaseModelOutputWithPooling(last_hidden_state=last, pooler_output=self.pooler(last))

    def _check(self, input_ids: Tensor) -> None:
        limit = self.config.max_position_embeddings
        if input_ids.dim() != 3 or input_ids.shape[1] > limit:
            raise InputError(
                "CharacterBERT reads the characters of words",
                got=f"input_ids of shape {tuple(input_ids.shape)}",
                expected=f"(texts, at most {limit} words, {self.config.max_word_length} characters)",
                do=f"CharacterBertTokenizer()(texts, padding=True, truncation=True, max_length={limit})",
            )


class CharacterBertPredictions(nn.Module):
    """Scores of the words of the output vocabulary. The matrix is its own: there is no input table to share."""

    def __init__(self, config: CharacterBertConfig) -> None:
        super().__init__()
        self.transform = BertPredictionHeadTransform(config)
        self.decoder = nn.Linear(config.hidden_size, config.mlm_vocab_size, bias=False)
        self.bias = nn.Parameter(torch.zeros(config.mlm_vocab_size))

    def forward(self, hidden: Tensor) -> Tensor:
        return self.decoder(self.transform(hidden)) + self.bias


class CharacterBertForMaskedLM(CharacterBertPreTrainedModel):
    """The encoder with the head that guesses masked words."""

    def __init__(self, config: CharacterBertConfig) -> None:
        super().__init__(config)
        self.character_bert = CharacterBertModel(config)
        self.cls = nn.ModuleDict({"predictions": CharacterBertPredictions(config)})
        self.post_init()

    def get_output_embeddings(self) -> nn.Module:
        return self.get_submodule("cls.predictions.decoder")

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        labels: Tensor | None = None,
        **kwargs: Any,
    ) -> MaskedLMOutput:
        outputs = self.character_bert(input_ids, attention_mask, token_type_ids, **kwargs)
        logits = self.cls["predictions"](outputs.last_hidden_state)
        loss = None if labels is None else self.loss_function(logits, labels, self.config.mlm_vocab_size)
        return MaskedLMOutput(
            loss=loss, logits=logits, hidden_states=outputs.hidden_states, attentions=outputs.attentions
        )


def basic_words(text: str) -> list[str]:
    """BERT's basic tokenisation, uncased: no control characters, no accents, signs and ideographs by themselves.

    >>> basic_words("Café-au-lait\\u200b, 日本!")
    ['cafe', '-', 'au', '-', 'lait', ',', '日', '本', '!']
    """
    return BasicTokenizer(do_lower_case=True).tokenize(text.encode("utf-8", "ignore").decode())  # no half characters


@lru_cache(maxsize=65536)
def spell(word: str, length: int = 50) -> tuple[int, ...]:
    """The character ids of one word: begin, its bytes (at most length − 2, cut where they fall), end, filler.

    >>> spell("a", 6), spell("[CLS]", 6), spell("[PAD]", 6)
    ((259, 98, 260, 261, 261, 261), (259, 257, 260, 261, 261, 261), (0, 0, 0, 0, 0, 0))
    """
    if word == "[PAD]":
        return (0,) * length
    codes = [_CODES[word]] if word in _CODES else [byte + 1 for byte in word.encode("utf-8", "ignore")[: length - 2]]
    return (_WORD_BEGIN, *codes, _WORD_END, *[_FILLER] * (length - 2 - len(codes)))


class CharacterBertTokenizer(PreTrainedTokenizer):
    """Text to (B, L, 50) character ids, called as any tokenizer of the library. The "id" of a word is its spelling.

    It needs no vocabulary file: a folder with nothing but config and weights gives the published tokenizer. `[UNK]` is
    kept whole, but has no code of its own and is spelled like a word.
    """

    vocab_files_names: dict[str, str] = {}
    model_input_names = ["input_ids", "token_type_ids", "attention_mask"]

    def __init__(self, max_word_length: int = 50, model_max_length: int = 512, **kwargs: Any) -> None:
        self.max_word_length = max_word_length
        names = {f"{name}_token": f"[{name.upper()}]" for name in ("cls", "sep", "mask", "pad", "unk")}
        options = {**names, "special_tokens_pattern": "cls_sep", "model_max_length": model_max_length, **kwargs}
        super().__init__(max_word_length=max_word_length, **options)

    @property
    def vocab_size(self) -> int:
        return CHARACTERS

    @property
    def pad_token_id(self) -> int:
        return 0  # of each character: the library compares it with numbers

    def get_vocab(self) -> dict[str, int]:
        """The characters by name; words have no finite vocabulary."""
        marks = {"<word>": _WORD_BEGIN, "</word>": _WORD_END, "<filler>": _FILLER, "[PAD]": 0, **_CODES}
        return {f"<0x{byte:02X}>": byte + 1 for byte in range(256)} | marks | self._added_tokens_encoder

    def _tokenize(self, text: str, **kwargs: Any) -> list[str]:
        return basic_words(text)

    def _convert_token_to_id_with_added_voc(self, token: str) -> tuple[int, ...]:
        return spell(token, self.max_word_length)

    def convert_ids_to_tokens(self, ids: Any, skip_special_tokens: bool = False) -> Any:
        """The words of a sequence of spellings, or the word of one spelling."""
        if len(ids) and isinstance(ids[0], int):
            return self._read(tuple(ids))
        words = [self._read(tuple(map(int, word))) for word in ids]
        return [word for word in words if not (skip_special_tokens and word in self.all_special_tokens)]

    def _read(self, word: tuple[int, ...]) -> str:
        specials = {spell(token, self.max_word_length): token for token in self.all_special_tokens}
        letters = bytes(code - 1 for code in word if 1 <= code <= 256)
        return specials.get(word) or letters.decode("utf-8", "replace")

    def get_special_tokens_mask(
        self, token_ids_0: list, token_ids_1: list | None = None, already_has_special_tokens: bool = False
    ) -> list[int]:
        if not already_has_special_tokens:
            return super().get_special_tokens_mask(token_ids_0, token_ids_1)
        return [int(word in self.all_special_tokens) for word in self.convert_ids_to_tokens(token_ids_0)]

    def pad(self, encoded_inputs: Any, *args: Any, **kwargs: Any) -> BatchEncoding:
        """As the library's, which takes the words of one text (a list of lists) for a batch of texts."""
        if not _is_one_text(encoded_inputs):
            return super().pad(encoded_inputs, *args, **kwargs)
        padded = super().pad({name: [value] for name, value in encoded_inputs.items()}, *args, **kwargs)
        return BatchEncoding({name: value[0] for name, value in padded.items()})

    def _pad(self, encoded_inputs: Any, *args: Any, **kwargs: Any) -> dict[str, Any]:
        padded = super()._pad(encoded_inputs, *args, **kwargs)
        padded["input_ids"] = [word or (0,) * self.max_word_length for word in padded["input_ids"]]
        return padded


def _is_one_text(encoded: Any) -> bool:
    words = encoded["input_ids"] if isinstance(encoded, Mapping) else []
    return bool(words and words[0] and isinstance(words[0][0], int))
