"""Small models of the published classes, with fresh weights.

The classes are those of transformers, so a checkpoint is read by anything that reads theirs. Sizes come from the
recipe; everything else keeps the default of the class, except for what a small model needs to learn in minutes:

- no dropout unless asked for: it sees each text once;
- initial weights of spread 0.035 instead of 0.02: at width 96, queries and keys of spread 0.02 are too small for
  attention to find anything for more than 1,500 steps (0.06 would keep the variance that 0.02 has at width 768, but
  then the random part hides for long what was learned);
- learned positions start as sinusoids (wavelengths from 4 to twice the length, the same spread as the rest). From
  random rows, a head of d_h dimensions cannot tell "the one before" until the rows have become smooth: a byte-level
  BERT sat at the loss of a bag of bytes for more than 2,000 steps, and left it within 1,000 from sinusoids;
- BERT's single token type starts at zero: a random one is a constant added to every input, which alone makes the mean
  cosine 1/3 before any training.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from anisoscope.training.data.bytes import SPECIALS

if TYPE_CHECKING:
    from torch import Tensor, nn
    from transformers import PreTrainedModel

    from anisoscope.training.recipe import Recipe

PAD, FIRST, LAST = (SPECIALS.index(token) for token in ("[PAD]", "[CLS]", "[SEP]"))


def build(recipe: Recipe, *, seed: int, vocabulary: int = 0, classes: int = 0) -> PreTrainedModel:
    """The model of a recipe with initial weights drawn from `seed`, in training mode.

    `vocabulary` is the number of tokens, for text; `classes` the number of labels, for images.
    """
    import torch

    torch.manual_seed(seed)
    makers = {"bert": _bert, "gpt2": _gpt2, "neox": _neox, "llama": _llama}
    if recipe.arch == "vit":
        model = _vit(recipe, classes)
    elif recipe.arch == "convnet":
        model = _convnet(recipe, classes)
    else:
        model = makers[recipe.arch](recipe, vocabulary)
    return model.train()


def _bert(recipe: Recipe, vocabulary: int) -> PreTrainedModel:
    from transformers import BertConfig, BertForMaskedLM, BertModel

    config = BertConfig(
        vocab_size=vocabulary,
        max_position_embeddings=recipe.length,
        type_vocab_size=1,
        pad_token_id=PAD,
        hidden_dropout_prob=recipe.dropout,
        attention_probs_dropout_prob=recipe.dropout,
        **_sizes(recipe),
    )
    headless = recipe.objective == "headless"
    model = BertModel(config, add_pooling_layer=False) if headless else BertForMaskedLM(config)
    embeddings: Any = model.base_model.embeddings
    embeddings.token_type_embeddings.weight.data.zero_()
    _start_positions(embeddings.position_embeddings, recipe)
    return model


def _gpt2(recipe: Recipe, vocabulary: int) -> PreTrainedModel:
    from transformers import GPT2Config, GPT2LMHeadModel, GPT2Model

    config = GPT2Config(
        n_positions=recipe.length,
        n_embd=recipe.hidden,
        n_layer=recipe.layers,
        n_head=recipe.heads,
        n_inner=recipe.feedforward,
        resid_pdrop=recipe.dropout,
        embd_pdrop=recipe.dropout,
        attn_pdrop=recipe.dropout,
        initializer_range=recipe.initializer_range,
        **_text(vocabulary),
    )
    model = GPT2Model(config) if recipe.objective == "headless" else GPT2LMHeadModel(config)
    body: Any = model.base_model
    _start_positions(body.wpe, recipe)
    return model


def _neox(recipe: Recipe, vocabulary: int) -> PreTrainedModel:
    from transformers import GPTNeoXConfig, GPTNeoXForCausalLM, GPTNeoXModel

    config = GPTNeoXConfig(
        max_position_embeddings=recipe.length,
        hidden_dropout=recipe.dropout,
        attention_dropout=recipe.dropout,
        **_text(vocabulary),
        **_sizes(recipe),
    )
    return GPTNeoXModel(config) if recipe.objective == "headless" else GPTNeoXForCausalLM(config)


def _llama(recipe: Recipe, vocabulary: int) -> PreTrainedModel:
    from transformers import LlamaConfig, LlamaForCausalLM, LlamaModel

    config = LlamaConfig(
        max_position_embeddings=recipe.length,
        attention_dropout=recipe.dropout,
        **_text(vocabulary),
        **_sizes(recipe),
    )
    return LlamaModel(config) if recipe.objective == "headless" else LlamaForCausalLM(config)


def _vit(recipe: Recipe, classes: int) -> PreTrainedModel:
    from transformers import ViTConfig, ViTForImageClassification

    config = ViTConfig(
        image_size=recipe.image_size,
        patch_size=recipe.patch,
        hidden_dropout_prob=recipe.dropout,
        attention_probs_dropout_prob=recipe.dropout,
        **_sizes(recipe),
    )
    config.num_labels = classes
    return ViTForImageClassification(config)


def _convnet(recipe: Recipe, classes: int) -> PreTrainedModel:
    """A ConvNeXt of two stages: the stem cuts patches, the second stage halves the map and doubles the channels."""
    from transformers import ConvNextConfig, ConvNextForImageClassification

    early = recipe.layers // 2
    config = ConvNextConfig(
        image_size=recipe.image_size,
        patch_size=recipe.patch,
        num_stages=2,
        depths=[early, recipe.layers - early],
        hidden_sizes=[recipe.hidden, 2 * recipe.hidden],
        initializer_range=recipe.initializer_range,
    )
    config.num_labels = classes
    return ConvNextForImageClassification(config)


def _start_positions(table: nn.Embedding, recipe: Recipe) -> None:
    if recipe.positions == "sinusoidal":
        length, width = table.weight.shape
        table.weight.data = recipe.initializer_range * sinusoids(length, width)


def sinusoids(length: int, width: int) -> Tensor:
    """A table (length, width) of sines, then cosines, of wavelengths from 4 to 2·length, with mean square 1."""
    import torch

    wavelengths = torch.logspace(math.log10(4), math.log10(2 * length), (width + 1) // 2)
    angles = 2 * math.pi * torch.arange(length)[:, None] / wavelengths  # (length, width / 2)
    table = torch.cat((angles.sin(), angles.cos()), dim=1)[:, :width]
    return table / table.square().mean().sqrt()


def _sizes(recipe: Recipe) -> dict[str, Any]:
    return {
        "hidden_size": recipe.hidden,
        "num_hidden_layers": recipe.layers,
        "num_attention_heads": recipe.heads,
        "intermediate_size": recipe.feedforward,
        "initializer_range": recipe.initializer_range,
    }


def _text(vocabulary: int) -> dict[str, Any]:
    """Vocabulary and special tokens of a causal model; a training on whole windows needs no cache."""
    return {
        "vocab_size": vocabulary,
        "bos_token_id": FIRST,
        "eos_token_id": LAST,
        "pad_token_id": PAD,
        "use_cache": False,
    }
