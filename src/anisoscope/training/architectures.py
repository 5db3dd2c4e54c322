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
TEXT = {
    "bert": ("Bert", "ForMaskedLM", ("hidden_dropout_prob", "attention_probs_dropout_prob")),
    "gpt2": ("GPT2", "LMHeadModel", ("resid_pdrop", "embd_pdrop", "attn_pdrop")),
    "neox": ("GPTNeoX", "ForCausalLM", ("hidden_dropout", "attention_dropout")),
    "llama": ("Llama", "ForCausalLM", ("attention_dropout",)),
}
"""Architectures of text: the names of their classes, and of their dropouts."""


def build(recipe: Recipe, *, seed: int, vocabulary: int = 0, classes: int = 0) -> PreTrainedModel:
    """The model of a recipe with initial weights drawn from `seed`, in training mode.

    `vocabulary` is the number of tokens, for text; `classes` the number of labels, for images.
    """
    import torch

    torch.manual_seed(seed)
    model = _classifier(recipe, classes) if recipe.vision else _language_model(recipe, vocabulary)
    return model.train()


def _language_model(recipe: Recipe, vocabulary: int) -> PreTrainedModel:
    """A model of text with its head, or, trained headless, without one."""
    import transformers as library

    family, head, dropouts = TEXT[recipe.arch]
    fields = {**_sizes(recipe), "vocab_size": vocabulary, "pad_token_id": PAD, "max_position_embeddings": recipe.length}
    fields |= dict.fromkeys(dropouts, recipe.dropout)
    if recipe.causal:  # a training on whole windows needs no cache
        fields |= {"bos_token_id": FIRST, "eos_token_id": LAST, "use_cache": False}
    else:
        fields |= {"type_vocab_size": 1}
    if recipe.arch == "gpt2":
        fields["n_inner"] = fields.pop("intermediate_size")
    config = getattr(library, f"{family}Config")(**fields)
    if recipe.objective == "headless":
        options = {} if recipe.causal else {"add_pooling_layer": False}
        model = getattr(library, f"{family}Model")(config, **options)
    else:
        model = getattr(library, f"{family}{head}")(config)
    body: Any = model.base_model
    if recipe.arch == "bert":
        body.embeddings.token_type_embeddings.weight.data.zero_()
        _start_positions(body.embeddings.position_embeddings, recipe)
    if recipe.arch == "gpt2":
        _start_positions(body.wpe, recipe)
    return model


def _classifier(recipe: Recipe, classes: int) -> PreTrainedModel:
    """A ViT, or a ConvNeXt of two stages: its stem cuts patches, the second stage halves the map, doubles channels."""
    import transformers as library

    shared: dict[str, Any] = {"image_size": recipe.image_size, "patch_size": recipe.patch}
    if recipe.arch == "vit":
        dropped = dict.fromkeys(("hidden_dropout_prob", "attention_probs_dropout_prob"), recipe.dropout)
        config: Any = library.ViTConfig(**shared, **dropped, **_sizes(recipe))
    else:
        early = recipe.layers // 2
        config = library.ConvNextConfig(
            **shared,
            num_stages=2,
            depths=[early, recipe.layers - early],
            hidden_sizes=[recipe.hidden, 2 * recipe.hidden],
            initializer_range=recipe.initializer_range,
        )
    config.num_labels = classes
    kinds: Any = {"vit": library.ViTForImageClassification, "convnet": library.ConvNextForImageClassification}
    return kinds[recipe.arch](config)


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
