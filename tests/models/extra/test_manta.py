"""MANTa-LM gives the numbers recorded of the original computation, and opens the published checkpoints' layout."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AutoConfig, AutoModel, AutoModelForSeq2SeqLM, AutoTokenizer
from transformers.masking_utils import AttentionMaskInterface, eager_mask
from transformers.models.longformer.modeling_longformer import LongformerSelfAttention
from transformers.models.t5.modeling_t5 import T5Attention, T5DenseGatedActDense, eager_attention_forward

from anisoscope.errors import InputError, ModelError
from anisoscope.models.extra import manta
from anisoscope.models.extra.manta import BlockPooler, MantaConfig, MantaForConditionalGeneration, assign_bytes
from fixtures import recorded

TOLERANCE, FRONTIER_TOLERANCE = 1e-5, 1e-6
FACTS = recorded.facts("manta_tiny")
CONFIG = FACTS["config"]
CASES = ("a", "b", "c", "d")
POSITIONS = "encoder.frontier_predictor.local_transformer.embeddings.position_embeddings.weight"


def load(state: dict[str, Tensor] | None = None, **options: Any) -> MantaForConditionalGeneration:
    made = MantaForConditionalGeneration(MantaConfig(**{**CONFIG, **options})).eval()
    made.load_state_dict(state or recorded.tensors("manta_tiny_state"))
    return made


@pytest.fixture
def model() -> MantaForConditionalGeneration:
    return load()


@pytest.fixture(scope="module")
def io() -> dict[str, Tensor]:
    return recorded.tensors("manta_tiny_io")


@torch.no_grad()
def run(model: MantaForConditionalGeneration, io: dict[str, Tensor], case: str, **options: Any) -> Any:
    names = ("input_ids", "attention_mask", "decoder_input_ids")
    return model(**{name: io.get(f"{case}.{name}") for name in names}, **options)


def outputs(model: MantaForConditionalGeneration, io: dict[str, Tensor], case: str) -> dict[str, Tensor]:
    """All that was recorded of a case; the assignment is made from the model's own frontiers."""
    found = run(model, io, case, output_hidden_states=True)
    floor = model.encoder.pooler.variance_floor(torch.float32)
    assigned = manta.assign_bytes(found.frontier_predictions, floor)
    kept = {"frontier_predictions": found.frontier_predictions, "pooled": found.encoder_hidden_states[0]}
    kept |= {"mu": assigned.mu, "sigma": assigned.sigma, "block_byte_proba": assigned.probabilities}
    for stack in ("encoder", "decoder"):
        states = found[f"{stack}_hidden_states"]
        kept |= {f"{stack}_hidden_states.{index}": state for index, state in enumerate(states)}
    return kept | {"logits": found.logits}


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("case", CASES)
def test_every_recorded_tensor_is_reproduced(
    model: MantaForConditionalGeneration, io: dict[str, Tensor], case: str, attention: str
):
    model.set_attn_implementation(attention)
    ours, theirs = outputs(model, io, case), recorded.outputs_of(io, case)
    assert recorded.furthest(ours, theirs) < TOLERANCE
    frontiers = "frontier_predictions"
    assert recorded.furthest({frontiers: ours[frontiers]}, {frontiers: theirs[frontiers]}) < FRONTIER_TOLERANCE


# --- what the recorded numbers would show ---------------------------------------------------------------------------


def _window(side: int) -> Callable[[pytest.MonkeyPatch], MantaForConditionalGeneration]:
    """Another window needs another number of positions; the extra ones are never reached."""

    def make(patch: pytest.MonkeyPatch) -> MantaForConditionalGeneration:
        state = recorded.tensors("manta_tiny_state")
        rows = MantaConfig(**{**CONFIG, "frontier_predictor_attention_window": 2 * side}).frontier_config()
        table = torch.zeros(rows.max_position_embeddings, CONFIG["byte_embedding_dim"])
        table[:81] = state[POSITIONS][: len(table)]
        return load(state | {POSITIONS: table}, frontier_predictor_attention_window=2 * side)

    return make


def _positions_from_zero(patch: pytest.MonkeyPatch) -> MantaForConditionalGeneration:
    state = recorded.tensors("manta_tiny_state")
    return load(state | {POSITIONS: state[POSITIONS].roll(1, 0)})


def _squared_deviation(patch: pytest.MonkeyPatch) -> MantaForConditionalGeneration:
    def assign(frontiers: Tensor, floor: float) -> manta.Assignment:
        kept = assign_bytes(frontiers, floor)
        index = torch.arange(kept.probabilities.shape[1])[:, None]
        distance = -((kept.mu[:, None] - index) ** 2) / (2 * kept.sigma[:, None] ** 2)
        return kept._replace(probabilities=distance.softmax(1))

    patch.setattr(manta, "assign_bytes", assign)
    return load()


def _first_frontier_kept(patch: pytest.MonkeyPatch) -> MantaForConditionalGeneration:
    def assign(frontiers: Tensor, floor: float) -> manta.Assignment:
        """A byte in front takes the zero instead, and leaves."""
        kept = assign_bytes(torch.cat([frontiers[:, :1], frontiers], 1), floor)
        return manta.Assignment(*(part[..., 1:] for part in kept))

    patch.setattr(manta, "assign_bytes", assign)
    return load()


def _mean_pool(patch: pytest.MonkeyPatch) -> MantaForConditionalGeneration:
    patch.setattr(torch.Tensor, "amax", torch.Tensor.mean)
    return load()


def _each(kind: type[nn.Module], change: Callable[[Any], None]) -> Callable[..., MantaForConditionalGeneration]:
    def make(patch: pytest.MonkeyPatch) -> MantaForConditionalGeneration:
        made = load()
        for part in made.modules():
            if isinstance(part, kind):
                change(part)
        return made

    return make


def _masked_queries_kept(patch: pytest.MonkeyPatch) -> MantaForConditionalGeneration:
    whole = LongformerSelfAttention.forward

    @functools.wraps(whole)
    def forward(self: Any, *args: Any, is_index_masked: Tensor, **kwargs: Any) -> Any:
        return whole(self, *args, is_index_masked=torch.zeros_like(is_index_masked), **kwargs)

    patch.setattr(LongformerSelfAttention, "forward", forward)
    return load()


MISTAKES = {
    "2σ² for 2σ": (_squared_deviation, 1.7e-1),
    "positions from 0": (_positions_from_zero, 9.7e-1),
    "window 7": (_window(7), 1.7e-1),
    "window 16": (_window(16), 2.6e-1),
    "first frontier kept": (_first_frontier_kept, 1.6e-2),
    "mean-pool": (_mean_pool, 4.0e-1),
    "scaled attention": (_each(T5Attention, lambda part: setattr(part, "scaling", 0.5)), 5.7e-1),
    "erf GELU": (_each(T5DenseGatedActDense, lambda part: setattr(part, "act", nn.GELU())), 4.2e-4),
    "masked queries kept": (_masked_queries_kept, 2.0e-1),
    "frontier LayerNorm eps 1e-5": (_each(nn.LayerNorm, lambda part: setattr(part, "eps", 1e-5)), 1.8e-5),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_the_recorded_numbers_would_show_a_mistake(
    io: dict[str, Tensor], mistake: str, monkeypatch: pytest.MonkeyPatch
):
    """Sums over bytes (μ, σ) are left out: they grow with the text. So are tensors whose shape already tells."""
    make, deviation = MISTAKES[mistake]
    made, found = make(monkeypatch), []
    for case in CASES:
        ours, theirs = outputs(made, io, case), recorded.outputs_of(io, case)
        same = [name for name in theirs if name not in ("mu", "sigma") and ours[name].shape == theirs[name].shape]
        found += [float((ours[name] - theirs[name]).abs().max()) for name in same]
    assert max(found) == pytest.approx(deviation, rel=0.05)


def test_the_variance_floor_is_five_resolutions_or_the_configured_one():
    """The recorded numbers cannot show it: a floor of 1e-6 moves them by less than the tolerance."""
    pooler = BlockPooler(MantaConfig(**CONFIG))
    floors = {torch.float32: 5e-6, torch.float64: 1e-6, torch.float16: 5e-3, torch.bfloat16: 5e-2}
    assert {kind: pooler.variance_floor(kind) for kind in floors} == pytest.approx(floors)
    nothing = assign_bytes(torch.zeros(1, 4), pooler.variance_floor(torch.float32))
    assert nothing.sigma.tolist() == [pytest.approx([5e-6**0.5] * 4)]


# --- the parts ------------------------------------------------------------------------------------------------------


def test_bytes_are_assigned_by_the_formula():
    torch.manual_seed(0)
    p = torch.rand(3, 20, dtype=torch.float64)
    found = assign_bytes(p, 1e-6)
    p = torch.cat([torch.zeros(3, 1, dtype=p.dtype), p[:, 1:]], 1)
    blocks = min(20, int((p.cumsum(1) + 3 * ((p * (1 - p)).cumsum(1) + 1e-6).sqrt()).max()) + 1)
    assert found.probabilities.shape == (3, blocks, 20)
    for text, byte in itertools.product(range(3), range(20)):
        mu = sum(float(p[text, j]) for j in range(byte + 1))
        sigma = (sum(float(p[text, j] * (1 - p[text, j])) for j in range(byte + 1)) + 1e-6) ** 0.5
        scores = torch.tensor([-((mu - k) ** 2) / (2 * sigma) for k in range(blocks)], dtype=p.dtype)
        torch.testing.assert_close(found.probabilities[text, :, byte], scores.exp() / scores.exp().sum())


@torch.no_grad()
def test_blocks_are_pooled_by_the_formula(monkeypatch: pytest.MonkeyPatch):
    """In chunks of two blocks, against one block, one position and one tap at a time."""
    torch.manual_seed(0)
    monkeypatch.setattr(manta, "BLOCKS_AT_ONCE", 2)
    pooler = BlockPooler(MantaConfig(**{**CONFIG, "max_length_encoder_decoder": 5})).double()
    nn.init.normal_(pooler.get_parameter("conv_layers.0.weight"))
    e, p = torch.randn(1, 12, 16, dtype=torch.float64), torch.rand(1, 12, dtype=torch.float64)
    weights = assign_bytes(p, pooler.variance_floor(p.dtype)).probabilities[0]
    kernel = pooler.get_parameter("conv_layers.0.weight")[0, 0]
    assert len(weights) > 5
    blocks = torch.full((5, 16), -torch.inf, dtype=e.dtype)
    for k, s in itertools.product(range(5), range(12)):
        near = [t for t in range(3) if 0 <= s + t - 1 < 12]
        terms = torch.stack([kernel[t] * weights[k, s + t - 1] * e[0, s + t - 1] for t in near])
        blocks[k] = blocks[k].maximum(terms.sum(0))
    torch.testing.assert_close(pooler(e, p)[0], pooler.out_projection(blocks))


def test_relative_positions_fall_into_the_recorded_buckets(model: MantaForConditionalGeneration):
    kept = recorded.facts("t5_relative_buckets")
    for stack, form in ((model.encoder.t5_encoder, "bidirectional_encoder"), (model.decoder, "causal_decoder")):
        attention: Any = stack.get_submodule("block.0.layer.0.SelfAttention")
        table = attention.relative_attention_bias.weight  # (buckets, heads)
        bias = attention.compute_bias(301, 301)[0]  # (heads, queries, keys)
        for distance, bucket in zip(kept["relative_position_key_minus_query"], kept[form], strict=True):
            query, key = max(0, -distance), max(0, distance)
            assert torch.equal(bias[:, query, key], table[bucket])


def test_texts_become_the_recorded_bytes(io: dict[str, Tensor], tmp_path: Path):
    MantaConfig(**CONFIG).save_pretrained(tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)  # the published repository names ByT5's
    for case, text in FACTS["texts"].items():
        ids = tokenizer(text.removesuffix("</s>"), return_tensors="pt")["input_ids"]
        assert torch.equal(ids, io[f"{case}.input_ids"])
    assert len(tokenizer) == 384


# --- the whole ------------------------------------------------------------------------------------------------------


def test_hidden_states_end_after_the_final_norm(model: MantaForConditionalGeneration, io: dict[str, Tensor]):
    raw: list[Tensor] = []
    model.encoder.t5_encoder.block[-1].register_forward_hook(lambda _, __, output: raw.append(output[0]))
    found = run(model, io, "a", output_hidden_states=True)
    assert (len(found.encoder_hidden_states), len(found.decoder_hidden_states)) == (4, 3)
    assert torch.equal(found.encoder_hidden_states[-1], model.encoder.t5_encoder.final_layer_norm(raw[0]))
    assert torch.equal(found.encoder_hidden_states[-1], found.encoder_last_hidden_state)
    assert run(model, io, "a").encoder_hidden_states is None


def test_queries_and_keys_of_the_stacks_pass_through_the_attention_interface(
    model: MantaForConditionalGeneration, io: dict[str, Tensor]
):
    seen: list[nn.Module] = []

    def probe(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
        seen.append(module)
        return eager_attention_forward(module, *args, **kwargs)

    AttentionInterface.register("manta_probe", probe)
    AttentionMaskInterface.register("manta_probe", eager_mask)
    model.set_attn_implementation("manta_probe")
    assert recorded.furthest(outputs(model, io, "b"), recorded.outputs_of(io, "b")) < TOLERANCE
    assert seen == [part for part in model.modules() if isinstance(part, T5Attention)]
    assert len(seen) == 3 + 2 * 2


def test_a_batch_changes_its_texts_as_recorded(model: MantaForConditionalGeneration, io: dict[str, Tensor]):
    """Not wished, but so: why texts are run one at a time."""
    together = run(model, io, "b").encoder_last_hidden_state[1]
    alone = run(model, io, "c").encoder_last_hidden_state[0]
    assert (len(together), len(alone)) == (12, 8)
    assert float((together[:8] - alone).abs().max()) > 0.01


@torch.no_grad()
def test_labels_are_shifted_for_the_decoder(model: MantaForConditionalGeneration, io: dict[str, Tensor]):
    labels = torch.tensor([[70, 80, 90, 1, -100]])
    found = model(io["c.input_ids"], labels=labels)
    explicit = model(io["c.input_ids"], decoder_input_ids=torch.tensor([[0, 70, 80, 90, 1]])).logits
    assert torch.equal(found.logits, explicit)
    chosen = explicit[0].log_softmax(-1)[range(4), labels[0, :4]]
    assert float(found.loss) == pytest.approx(-float(chosen.mean()), rel=1e-5)


@torch.no_grad()
def test_generation_equals_choosing_the_best_byte_step_by_step(model: Any, io: dict[str, Tensor]):
    ids = io["c.input_ids"]
    found = model.generate(ids, max_new_tokens=6, do_sample=False)
    written = torch.tensor([[0]])
    while written.shape[1] < 7 and written[0, -1] != 1:
        best = model(ids, decoder_input_ids=written, use_cache=False).logits[:, -1:].argmax(-1)
        written = torch.cat([written, best], 1)
    assert found.tolist() == written.tolist()


def test_a_text_beyond_the_last_position_is_refused(model: MantaForConditionalGeneration):
    assert model.encoder(torch.full((1, 80), 70)).last_hidden_state.shape[1] <= 12
    with pytest.raises(InputError, match="81 bytes"):
        model.encoder(torch.full((1, 81), 70))


@pytest.mark.parametrize("option", [{"pooling_mean_pool": True}, {"pooling_kernel_size": 4}])
def test_pooling_that_was_never_published_is_refused(option: dict[str, Any]):
    with pytest.raises(ModelError, match="never published"):
        MantaConfig(**{**CONFIG, **option})


# --- files ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pickled", [True, False])
@pytest.mark.parametrize("opener", [AutoModel, AutoModelForSeq2SeqLM])
def test_the_published_layout_opens(tmp_path: Path, io: dict[str, Tensor], opener: Any, pickled: bool):
    """Its config names Python files of the repository, which are neither there nor needed."""
    state = recorded.tensors("manta_tiny_state")
    code = {"AutoConfig": "configuration_manta.MantaConfig", "AutoModelForSeq2SeqLM": "modeling_manta.Manta"}
    config = {"model_type": "manta", "auto_map": code, "tokenizer_class": "ByT5Tokenizer", **CONFIG}
    folder = recorded.publish(tmp_path, config, state, pickled=pickled)
    opened, report = opener.from_pretrained(folder, trust_remote_code=False, output_loading_info=True)
    assert isinstance(opened, MantaForConditionalGeneration)
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    assert opened.state_dict().keys() == state.keys()
    for case in CASES:
        assert recorded.furthest(outputs(opened, io, case), recorded.outputs_of(io, case)) < TOLERANCE


def test_what_is_saved_opens_again(tmp_path: Path, model: MantaForConditionalGeneration):
    model.save_pretrained(tmp_path)
    again, report = AutoModel.from_pretrained(tmp_path, output_loading_info=True)
    assert not report["missing_keys"]
    assert again.decoder.embed_tokens.weight is again.decoder_embeddings.weight
    assert recorded.furthest(dict(again.state_dict()), dict(model.state_dict())) == 0
    config = AutoConfig.from_pretrained(tmp_path)
    assert (config.tie_word_embeddings, config.decoder_start_token_id, config.dense_act_fn) == (False, 0, "gelu_new")
