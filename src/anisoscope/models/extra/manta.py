"""MANTa-LM: a sequence-to-sequence model over bytes that learns where its own tokens end.

Godey, Castagné, de la Clergerie, Sagot, *MANTa: Efficient Gradient-Based Tokenization for Robust End-to-End Language
Modeling*, 2022, https://arxiv.org/abs/2212.07284. No library has it; this one loads `almanach/manta-lm-small` and
`almanach/manta-lm-base` without running the code of their repositories.

    bytes → vectors e → frontier probabilities p (a small sliding-window transformer)
    μᵢ = Σ_{j≤i} pⱼ,   σᵢ = √( Σ_{j≤i} pⱼ(1 − pⱼ) + v ),   P[k, i] = softmax over blocks k of −(μᵢ − k)² / 2σᵢ
    block k = projection of the maximum over positions of a depthwise convolution of P[k, i] eᵢ
    blocks → T5 encoder;   bytes so far → T5 decoder, which looks at the blocks → bytes

The window transformer is the library's Longformer, encoder and decoder are its T5 stacks, so queries and keys of these
pass through its AttentionInterface. Cost of the pooling: blocks × bytes × width, held for 64 blocks at a time.

Traps, each kept because the checkpoints were trained so: the denominator is 2σ, not 2σ²; the first probability is set
to zero; positions of the window transformer start at 1; v is 5e-6 in float32; the convolution sees the byte vectors,
not the window transformer's output; the T5 stacks see no mask. Hence **a batch changes its texts**: the number of
blocks is that of the text with most, padding takes part, all attend to all. Run one unpadded text at a time.
Encoder positions are blocks, not bytes, and their number depends on the text. `hidden_states[-1]` of either stack is
after the final norm.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from huggingface_hub.dataclasses import strict
from torch import Tensor, nn
from torch.nn.functional import pad
from transformers import GenerationMixin, LongformerConfig, LongformerModel, T5Config
from transformers import initialization as init
from transformers.modeling_outputs import BaseModelOutput, Seq2SeqLMOutput
from transformers.models.t5.modeling_t5 import T5PreTrainedModel, T5Stack
from transformers.utils.generic import can_return_tuple

from anisoscope.errors import InputError, ModelError

BLOCKS_AT_ONCE = 64


@strict
class MantaConfig(T5Config):
    """The sizes of a MANTa-LM; the defaults are those of manta-lm-small, not those of the authors' config class."""

    model_type = "manta"

    vocab_size: int = 384
    byte_embedding_dim: int = 64
    frontier_predictor_num_layers: int = 1
    frontier_predictor_num_attention_heads: int = 8
    frontier_predictor_attention_window: int = 16
    pooling_variance_regularization: float = 1e-6
    pooling_kernel_size: int = 3
    pooling_depthwise_convolution: bool = True
    pooling_mean_pool: bool = False
    max_length_inputs: int = 1024  # bytes
    max_length_encoder_decoder: int = 256  # blocks
    feed_forward_proj: str = "gated-gelu"
    decoder_start_token_id: int | None = 0

    def __post_init__(self, **kwargs: Any) -> None:
        super().__post_init__(**kwargs)
        self.tie_word_embeddings = False  # T5's config insists on True, but the output has a matrix of its own
        if self.pooling_mean_pool or not self.pooling_depthwise_convolution or self.pooling_kernel_size % 2 == 0:
            raise ModelError(
                "this kind of MANTa pooling was never published",
                got=f"mean_pool {self.pooling_mean_pool}, depthwise {self.pooling_depthwise_convolution}, "
                f"kernel {self.pooling_kernel_size}",
                expected="the maximum of a depthwise convolution with an odd kernel",
            )

    def frontier_config(self) -> LongformerConfig:
        """The sliding-window transformer that predicts frontiers."""
        window, size = self.frontier_predictor_attention_window, self.byte_embedding_dim
        return LongformerConfig(
            vocab_size=1,
            hidden_size=size,
            num_hidden_layers=self.frontier_predictor_num_layers,
            num_attention_heads=self.frontier_predictor_num_attention_heads,
            intermediate_size=4 * size,
            attention_window=window,
            max_position_embeddings=(self.max_length_inputs // window + 1) * window + 1,
            type_vocab_size=2,
            layer_norm_eps=1e-12,
            hidden_dropout_prob=self.dropout_rate,
            attention_probs_dropout_prob=self.dropout_rate,
            pad_token_id=0,
            bos_token_id=None,
            eos_token_id=None,
            sep_token_id=None,
        )


class Assignment(NamedTuple):
    """How bytes belong to blocks: mean and deviation of each byte's block index, and P (B, blocks, bytes)."""

    mu: Tensor
    sigma: Tensor
    probabilities: Tensor


def assign_bytes(frontiers: Tensor, variance_floor: float) -> Assignment:
    """Give each byte a distribution over blocks, from the probability (B, L) that a block begins at it.

    >>> assign_bytes(torch.tensor([[0.9, 0.0, 1.0]]), 5e-6).probabilities.argmax(1)  # the first byte opens block 0
    tensor([[0, 0, 1]])
    """
    frontiers = pad(frontiers[:, 1:], (1, 0))
    mu = frontiers.cumsum(-1)
    sigma = ((frontiers * (1 - frontiers)).cumsum(-1) + variance_floor).sqrt()
    blocks = min(frontiers.shape[1], int((mu + 3 * sigma).max()) + 1)
    index = torch.arange(blocks, device=mu.device, dtype=mu.dtype)[:, None]
    distance = -((mu[:, None] - index) ** 2) / (2 * sigma[:, None])  # (B, blocks, L)
    return Assignment(mu, sigma, distance.softmax(dim=1))


class FrontierPredictor(nn.Module):
    """The probability that a block begins at each byte."""

    def __init__(self, config: MantaConfig) -> None:
        super().__init__()
        self.window = config.frontier_predictor_attention_window
        self.local_transformer = LongformerModel(config.frontier_config())
        self.output_projection = nn.Linear(config.byte_embedding_dim, 1)

    def forward(self, embedded: Tensor, mask: Tensor | None) -> Tensor:
        length = embedded.shape[1]
        missing = -length % self.window  # the library would fill up as well, and log it
        mask = torch.ones_like(embedded[..., 0]) if mask is None else mask
        hidden = self.local_transformer(
            inputs_embeds=pad(embedded, (0, 0, 0, missing)), attention_mask=pad(mask, (0, missing))
        ).last_hidden_state[:, :length]
        return self.output_projection(hidden).squeeze(-1).sigmoid()


class DepthwiseConvolution(nn.Module):
    """The kernel (1, 1, taps, channels) of a convolution along bytes, without bias."""

    def __init__(self, taps: int, channels: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(1, 1, taps, channels))


class BlockPooler(nn.Module):
    """Blocks (B, N, d_model) from byte vectors and frontier probabilities."""

    def __init__(self, config: MantaConfig) -> None:
        super().__init__()
        self.regularization = config.pooling_variance_regularization
        self.max_blocks = config.max_length_encoder_decoder
        self.conv_layers = nn.ModuleList([DepthwiseConvolution(config.pooling_kernel_size, config.byte_embedding_dim)])
        self.out_projection = nn.Linear(config.byte_embedding_dim, config.d_model)

    def variance_floor(self, dtype: torch.dtype) -> float:
        """v: 5e-6 in float32, 1e-6 in float64. It keeps the square root's gradient finite."""
        return max(5 * torch.finfo(dtype).resolution, self.regularization)

    def forward(self, embedded: Tensor, frontiers: Tensor) -> Tensor:
        belongs = assign_bytes(frontiers, self.variance_floor(frontiers.dtype)).probabilities[:, : self.max_blocks]
        kernel = self.get_parameter("conv_layers.0.weight")[0, 0]  # (taps, channels)
        taps = len(kernel)
        around = pad(embedded, (0, 0, taps // 2, taps // 2)).unfold(1, taps, 1) * kernel.mT  # (B, L, channels, taps)
        weights = pad(belongs, (taps // 2, taps // 2)).unfold(2, taps, 1)  # (B, N, L, taps)
        pooled = [
            torch.einsum("bnlt,blct->bnlc", some, around).amax(2) for some in weights.split(BLOCKS_AT_ONCE, dim=1)
        ]
        return self.out_projection(torch.cat(pooled, dim=1))


@dataclass
class MantaEncoderOutput(BaseModelOutput):
    """The library's output and the probabilities (B, L) that a block begins at each byte."""

    frontier_predictions: Tensor | None = None


@dataclass
class MantaOutput(Seq2SeqLMOutput):
    """The library's output and the probabilities (B, L) that a block begins at each byte."""

    frontier_predictions: Tensor | None = None


class MantaEncoder(nn.Module):
    """Bytes to blocks, and a T5 encoder over the blocks. The mask is for the frontiers only: T5 gets none."""

    main_input_name = "input_ids"  # the library's `generate` asks for it

    def __init__(self, config: MantaConfig) -> None:
        super().__init__()
        self.byte_embeddings = nn.Embedding(config.vocab_size, config.byte_embedding_dim)
        self.frontier_predictor = FrontierPredictor(config)
        self.pooler = BlockPooler(config)
        self.t5_encoder = T5Stack(_stack_config(config, decoder=False))
        self.t5_encoder.set_input_embeddings(None)  # blocks enter as vectors
        self.limit = self.frontier_predictor.local_transformer.config.max_position_embeddings - 1

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None, **kwargs: Any) -> MantaEncoderOutput:
        if input_ids.shape[1] > self.limit:
            raise InputError(
                "the text is too long for MANTa",
                got=f"{input_ids.shape[1]} bytes",
                expected=f"at most {self.limit}",
                do="split it, or truncate it in the tokenizer",
            )
        embedded = self.byte_embeddings(input_ids)
        frontiers = self.frontier_predictor(embedded, attention_mask)
        encoded = self.t5_encoder(inputs_embeds=self.pooler(embedded, frontiers), **kwargs)
        return MantaEncoderOutput(**encoded, frontier_predictions=frontiers)


def _stack_config(config: MantaConfig, *, decoder: bool) -> MantaConfig:
    stack = copy.deepcopy(config)
    stack.is_decoder = decoder
    stack.use_cache = decoder and config.use_cache
    stack.num_layers = (config.num_decoder_layers or config.num_layers) if decoder else config.num_layers
    return stack


class MantaForConditionalGeneration(T5PreTrainedModel, GenerationMixin):
    """Encoder over blocks, decoder over bytes, and the output matrix over bytes."""

    config_class = MantaConfig
    # Read when saving: one table under two names, as published. A ClassVar would contradict the library's declaration.
    _tied_weights_keys = {"decoder.embed_tokens.weight": "decoder_embeddings.weight"}  # noqa: RUF012

    def __init__(self, config: MantaConfig) -> None:
        super().__init__(config)
        self.encoder = MantaEncoder(config)
        self.decoder_embeddings = nn.Embedding(config.vocab_size, config.d_model)
        self.decoder = T5Stack(_stack_config(config, decoder=True))
        self.decoder.set_input_embeddings(self.decoder_embeddings)
        self.lm_head = nn.Linear(config.d_model, config.vocab_size, bias=False)
        self.post_init()

    def get_input_embeddings(self) -> nn.Module:
        return self.encoder.byte_embeddings

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        """PyTorch's defaults, which the authors left alone; the Longformer and T5 parts initialise themselves."""
        if isinstance(module, nn.Embedding):
            init.normal_(module.weight)
        elif isinstance(module, nn.Linear):
            module.reset_parameters()
        elif isinstance(module, DepthwiseConvolution):
            bound = module.weight.shape[2] ** -0.5
            init.uniform_(module.weight, -bound, bound)

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        decoder_input_ids: Tensor | None = None,
        decoder_attention_mask: Tensor | None = None,
        encoder_outputs: MantaEncoderOutput | None = None,
        labels: Tensor | None = None,
        **kwargs: Any,
    ) -> MantaOutput:
        """Without `decoder_input_ids` the decoder reads the labels shifted right."""
        recorded = {name: value for name, value in kwargs.items() if name.startswith("output_")}
        encoded = encoder_outputs or self.encoder(input_ids, attention_mask, **recorded)
        if decoder_input_ids is None and labels is not None:
            decoder_input_ids = self._shift_right(labels)
        decoded = self.decoder(
            input_ids=decoder_input_ids,
            attention_mask=decoder_attention_mask,
            encoder_hidden_states=encoded.last_hidden_state,
            **kwargs,
        )
        logits = self.lm_head(decoded.last_hidden_state)
        loss: Any = None if labels is None else nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())
        return MantaOutput(
            loss=loss,
            logits=logits,
            past_key_values=decoded.past_key_values,
            decoder_hidden_states=decoded.hidden_states,
            decoder_attentions=decoded.attentions,
            cross_attentions=decoded.cross_attentions,
            encoder_last_hidden_state=encoded.last_hidden_state,
            encoder_hidden_states=encoded.hidden_states,
            encoder_attentions=encoded.attentions,
            frontier_predictions=encoded.frontier_predictions,
        )
