"""Untrained blocks of real architectures: the transformers class, at its own initialisation, ready to be fed vectors.

An architecture is a name (`bert`, `gpt2`, …: its base size, 768 wide, so that norms compare), a folder with a
`config.json`, or any transformers config. The whole network is built with `depth` blocks only and then *run*, so that
masks, rotary angles and relative biases are those of the model itself; what enters the first block is replaced on the
way by the vectors under study. The blocks keep the initialisation of the full depth (GPT-2 scales its residual
projections by 1/√(2·layers)).

Removing a branch is exact: with the last projection of attention (or of the MLP) at zero, the branch adds nothing and
the residual stream and the norms stay.

Cost: one initialisation of the vocabulary table and of `depth` blocks, about half a second at BERT-base sizes.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from anisoscope.capture.attention.capture import AttentionCapture
from anisoscope.capture.sites import find_sites
from anisoscope.errors import InputError, ModelError, UsageError

Branch = Literal["attention", "mlp"]

_WIDTH = 768
_DECODER = {"hidden_size": _WIDTH, "num_hidden_layers": 12, "num_attention_heads": 12}
_SIZES: dict[str, tuple[str, dict[str, Any]]] = {
    "bert": ("BertConfig", {}),
    "roberta": ("RobertaConfig", {"vocab_size": 50265, "max_position_embeddings": 514}),
    "modernbert": ("ModernBertConfig", {}),
    "gpt2": ("GPT2Config", {}),
    "opt": ("OPTConfig", {}),
    "neox": ("GPTNeoXConfig", {**_DECODER, "vocab_size": 50304, "intermediate_size": 3072}),
    "llama": ("LlamaConfig", {**_DECODER, "intermediate_size": 2048}),
    "olmo2": ("Olmo2Config", {**_DECODER, "intermediate_size": 2048}),
    "t5": ("T5Config", {"d_model": _WIDTH, "d_kv": 64, "d_ff": 3072, "num_layers": 12, "num_heads": 12}),
    "vit": ("ViTConfig", {}),
    "convnext": ("ConvNextConfig", {"hidden_sizes": [96, 192, 384, _WIDTH], "layer_scale_init_value": 1.0}),
    "resnet": ("ResNetConfig", {"embedding_size": 32, "hidden_sizes": [64, 128, 256, _WIDTH]}),
}
ARCHITECTURES = tuple(_SIZES)

# The last projection of each branch, and the biases of queries and keys, as the families of transformers name them.
_LAST_PROJECTION: dict[Branch, str] = {
    "attention": r"(attention\.output\.dense|attention\.dense|attn\.c_proj|attn\.Wo|o_proj|out_proj|out_lin|"
    r"SelfAttention\.o)$",
    "mlp": r"(^output\.dense|mlp\.c_proj|mlp\.Wo|down_proj|dense_4h_to_h|fc2|lin2|DenseReluDense\.wo)$",
}
_SEPARATE = r"(query|key|q_proj|k_proj|q_lin|k_lin|query_proj|key_proj)\.bias$"
_FUSED = r"(c_attn|query_key_value|Wqkv)\.bias$"


def check_finite(*finite: bool) -> None:
    """Refuse drift or weights so large that single precision cannot hold what the block makes of them."""
    if not all(finite):
        do = "smaller --norms, or a smaller --init-std"
        raise InputError("the numbers in the untrained block are not finite", do=do)


def configuration(arch: str | Any) -> Any:
    """The transformers config of an architecture: by name, from a folder or file with a config.json, or as given."""
    import transformers

    if not isinstance(arch, str):
        return arch.__class__.from_dict(arch.to_dict())
    if arch in _SIZES:
        name, sizes = _SIZES[arch]
        return getattr(transformers, name)(**sizes)
    if Path(arch).exists():
        return transformers.AutoConfig.from_pretrained(arch, trust_remote_code=False)
    raise UsageError(
        "unknown architecture", got=arch, expected=f"one of {', '.join(ARCHITECTURES)}, or a folder with a config.json"
    )


@dataclass(frozen=True)
class Stack:
    """`depth` untrained blocks inside their network, and how to feed them.

    `maps` is true for convolutional blocks, which take (B, d, H, W) instead of (B, T, d); `attention` tells whether
    there are queries and keys to look at.
    """

    module: Any
    blocks: tuple[nn.Module, ...]
    final_norm: nn.Module | None
    width: int
    maps: bool
    attention: bool

    @torch.no_grad()
    def run(self, vectors: Tensor) -> dict[str, Tensor]:
        """Push vectors (B, T, d) through the blocks; the output of each, and of the final norm, by site."""
        seen: dict[str, Tensor] = {}
        entering = [self.blocks[0].register_forward_pre_hook(self._replacing(vectors), with_kwargs=True)]
        for k, block in enumerate(self.blocks):
            entering.append(block.register_forward_hook(self._recording(seen, f"block.{k}")))
        if self.final_norm is not None:
            entering.append(self.final_norm.register_forward_hook(self._recording(seen, "final_norm")))
        try:
            self._pass(vectors.shape[0], vectors.shape[1])
        finally:
            for hook in entering:
                hook.remove()
        check_finite(*(bool(one.isfinite().all()) for one in (vectors, *seen.values())))
        return seen

    @torch.no_grad()
    def embed(self, sequences: int, length: int, generator: torch.Generator) -> Tensor:
        """What the network's own embedding layer hands to the first block for random inputs, (B, T, d)."""
        caught: list[Tensor] = []

        def catch(_block: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            caught.append(self._rows(args[0] if args else kwargs["hidden_states"]))

        hook = self.blocks[0].register_forward_pre_hook(catch, with_kwargs=True)
        try:
            self._pass(sequences, length, generator)
        finally:
            hook.remove()
        return caught[0]

    def _replacing(self, vectors: Tensor) -> Callable[..., Any]:
        b, t, d = vectors.shape
        fed = vectors.transpose(1, 2).reshape(b, d, *_rectangle(t)) if self.maps else vectors

        def replace(_block: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            return ((fed, *args[1:]), kwargs) if args else (args, {**kwargs, "hidden_states": fed})

        return replace

    def _recording(self, seen: dict[str, Tensor], site: str) -> Callable[..., None]:
        def record(_module: nn.Module, _args: Any, output: Any) -> None:
            seen[site] = self._rows(output[0] if isinstance(output, tuple) else output)

        return record

    def _rows(self, hidden: Tensor) -> Tensor:
        return hidden.flatten(2).transpose(1, 2) if hidden.dim() == 4 else hidden  # (B, T, d)

    def _pass(self, sequences: int, length: int, generator: torch.Generator | None = None) -> None:
        """Run the network; sequences that are longer than its table of positions are refused."""
        from anisoscope.models.processors import longest_input

        try:
            self.module(**self._carrier(sequences, length, generator))
        except (RuntimeError, IndexError) as error:
            limit = longest_input(self.module)
            if limit is None or length <= limit:
                raise
            most = f"at most {limit}"
            raise UsageError(
                "the architecture takes fewer vectors per sequence", got=f"--length {length}", expected=most
            ) from error

    def _carrier(self, sequences: int, length: int, generator: torch.Generator | None = None) -> dict[str, Any]:
        """The inputs that make the network run; without a generator their values never reach a block."""
        config: Any = self.module.config
        if self.module.main_input_name == "pixel_values":
            side = getattr(config, "image_size", 64)
            shape = (sequences, config.num_channels, side, side)
            return {
                "pixel_values": torch.zeros(shape) if generator is None else torch.randn(shape, generator=generator)
            }
        shape = (sequences, length)
        ids = torch.zeros(shape, dtype=torch.long)
        if generator is not None:
            ids = torch.randint(config.vocab_size, shape, generator=generator)
        return {"input_ids": ids, "attention_mask": torch.ones(shape, dtype=torch.long), "use_cache": False}


def _rectangle(positions: int) -> tuple[int, int]:
    """The most square map of that many positions: 512 → 16×32."""
    height = next(h for h in range(math.isqrt(positions), 0, -1) if positions % h == 0)
    return height, positions // height


def build(
    arch: str | Any,
    *,
    seed: int,
    depth: int = 1,
    init_std: float | None = None,
    qk_bias: bool = False,
    without: Branch | None = None,
) -> Stack:
    """`depth` freshly initialised blocks of `arch`.

    - `init_std`: the standard deviation of the initialisation, where the config has one.
    - `qk_bias`: query and key biases drawn as a plain linear layer draws them, U(±1/√d), instead of zero.
    - `without`: the branch that is taken out.
    """
    config = configuration(arch)
    if init_std is not None:
        config = _with_init_std(config, init_std)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        module, blocks = _initialised(config, depth)
        if qk_bias:
            for block in blocks:
                _draw_qk_bias(block, config)
        if without is not None:
            for block in blocks:
                _remove(block, without)
    for part in module.modules():
        if isinstance(part, nn.BatchNorm2d):
            part.train()  # at initialisation the running averages are those of no data: use the batch's
    norms = [site for site in find_sites(module) if site.kind == "norm"]
    final = module.get_submodule(norms[-1].path) if norms else None
    maps = any(isinstance(part, nn.Conv2d) for part in blocks[0].modules())
    return Stack(module, blocks, None if maps else final, _width(config), maps, _has_attention(module))


def _has_attention(module: nn.Module) -> bool:
    try:
        with AttentionCapture(module, lambda _site, _call: None):
            return True
    except ModelError:
        return False


def _initialised(config: Any, depth: int) -> tuple[nn.Module, tuple[nn.Module, ...]]:
    """The network cut to `depth` blocks, which are drawn as if it had its full depth."""
    layers = getattr(config, "num_hidden_layers", None)
    if layers is None or hasattr(config, "depths"):
        config.depths = [1, 1, 1, depth + 1]  # the first block of a stage may change the width
    else:
        config.num_hidden_layers = depth
    config.dtype = torch.float32
    module = _network(config).eval().requires_grad_(False)
    sites = [site for site in find_sites(module) if site.kind == "block"]
    blocks = tuple(module.get_submodule(site.path) for site in sites[-depth:])
    if layers is not None and not hasattr(config, "depths"):
        config.num_hidden_layers = layers
        for block in blocks:
            block.apply(module._init_weights)  # pyright: ignore[reportArgumentType]  (a method of PreTrainedModel)
        config.num_hidden_layers = depth
    return module, blocks


def _network(config: Any) -> nn.Module:
    import transformers

    if config.is_encoder_decoder:
        names = {"t5": "T5EncoderModel", "mt5": "MT5EncoderModel", "umt5": "UMT5EncoderModel"}
        if config.model_type not in names:
            raise ModelError("no encoder to take a block from", got=config.model_type, expected=", ".join(names))
        return getattr(transformers, names[config.model_type])(config)
    return transformers.AutoModel.from_config(config, trust_remote_code=False)


def _width(config: Any) -> int:
    return config.hidden_sizes[-1] if hasattr(config, "hidden_sizes") else config.hidden_size


def _with_init_std(config: Any, std: float) -> Any:
    if not hasattr(config, "initializer_range"):
        raise UsageError(
            "this architecture has no standard deviation to set", got=config.model_type, do="drop --init-std"
        )
    config.initializer_range = std
    return config


def _draw_qk_bias(block: nn.Module, config: Any) -> None:
    found = False
    bound = _width(config) ** -0.5
    for name, bias in block.named_parameters():
        if re.search(_SEPARATE, name):
            bias.data.uniform_(-bound, bound)
        elif re.search(_FUSED, name):
            # NeoX lays out (heads, 3, d_head), GPT-2 and ModernBERT (3, d): take queries and keys, leave values
            heads = config.num_attention_heads if name.endswith("query_key_value.bias") else 1
            bias.data.view(heads, 3, -1)[:, :2].uniform_(-bound, bound)
        else:
            continue
        found = True
    if not found:
        raise UsageError(
            "the block has no query and key biases",
            got=config.model_type,
            do="drop --qk-bias, or use a config with attention_bias=true",
        )


def _remove(block: nn.Module, branch: Branch) -> None:
    last = [part for name, part in block.named_modules() if re.search(_LAST_PROJECTION[branch], name)]
    if not last:
        raise UsageError(f"cannot find the last projection of the {branch} branch", got=type(block).__name__)
    for part in last:
        for parameter in part.parameters():
            parameter.data.zero_()
