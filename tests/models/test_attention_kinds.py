"""Each variant is its formula, cannot see the future or the padding, learns, and survives a save."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn
from transformers import AutoModel, ViTImageProcessor

import zoo
from anisoscope.errors import ModelError, UsageError
from anisoscope.models import attention_kinds as variants
from anisoscope.models.open import open_model
from anisoscope.training.architectures import build
from anisoscope.training.data.bytes import byte_tokenizer
from anisoscope.training.recipe import Recipe

TEXT = ("bert", "gpt2", "neox", "llama")
CAUSAL = ("gpt2", "neox", "llama")
VOCABULARY, LENGTH = 40, 12


def model_of(arch: str, variant: str, *, dtype: torch.dtype = torch.float64, layers: int = 2):
    recipe = Recipe(arch=arch, data=["-"], layers=layers, hidden=16, heads=2, length=LENGTH, image_size=8)
    model = build(recipe, seed=3, vocabulary=VOCABULARY, classes=4)
    for parameter in model.parameters():  # biases and norms that are not trivial
        parameter.data += 0.1 * torch.randn_like(parameter)
    return variants.apply(model.to(dtype), variant).eval()


def able(arch: str, variant: str) -> bool:
    return not (arch == "llama" and variant == "no_bias")


PAIRS = [(arch, variant) for arch in (*TEXT, "vit") for variant in variants.VARIANTS if able(arch, variant)]


def inputs_of(arch: str, *, rows: int = 2, seed: int = 0) -> dict[str, torch.Tensor]:
    draw = torch.Generator().manual_seed(seed)
    if arch == "vit":
        return {"pixel_values": torch.randn(rows, 3, 8, 8, generator=draw, dtype=torch.float64)}
    return {"input_ids": torch.randint(5, VOCABULARY, (rows, LENGTH), generator=draw)}


def feature(x: torch.Tensor) -> float:
    return float(x) + 1 if x > 0 else math.exp(x)


def brute_force(variant: str, q, k, allowed, *, scaling: float, temperature=None):
    """The weights of one head, row by row, from the formulas of the module's table."""
    rows = torch.zeros(len(q), len(k), dtype=torch.float64)
    for i in range(len(q)):
        seen = [j for j in range(len(k)) if allowed[i, j]]
        mean = torch.stack([q[j] for j in seen]).mean(0)
        if variant == "query_centred":
            x = [scaling * float((q[i] - mean) @ k[j]) for j in seen]
        elif variant == "cosine":
            x = [temperature * float(q[i] @ k[j] / (q[i].norm() * k[j].norm())) for j in seen]
        elif variant == "linear":
            x = [math.log(sum(feature(a) * feature(b) for a, b in zip(q[i], k[j], strict=True))) for j in seen]
        else:
            x = [scaling * float(q[i] @ k[j]) for j in seen]
        total = sum(math.exp(value) for value in x)
        for j, value in zip(seen, x, strict=True):
            if variant == "sigmoid":
                rows[i, j] = 1 / (1 + math.exp(-(value - math.log(len(seen)))))
            else:
                rows[i, j] = math.exp(value) / (total + (variant == "softmax_one"))
    return rows


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("variant", variants.VARIANTS)
def test_weights_equal_the_formula(variant: str, causal: bool) -> None:
    torch.manual_seed(0)
    heads, length, size = 2, 7, 4
    q, k = torch.randn(2, 1, heads, length, size, dtype=torch.float64)
    allowed = torch.ones(length, length, dtype=torch.bool).tril() if causal else torch.ones(length, length, dtype=bool)
    allowed[:, -1] = False  # padding
    allowed[-1, -1] = causal  # a padded row of a causal mask still sees itself
    mask = torch.zeros(1, 1, length, length, dtype=torch.float64)
    mask.masked_fill_(~allowed, torch.finfo(torch.float64).min)
    extras = variants.VariantAttention(variant, heads=heads, hidden=8, initializer_range=0.1).double()
    if variant == "cosine":
        extras.log_scale.data = torch.tensor([3.0, 0.5]).double().log()

    q2, k2 = extras.transform(q, k, mask, scaling=0.5)
    found = extras.weights(0.5 * q2 @ k2.transpose(-1, -2), mask)[0]

    for head in range(heads):
        temperature = [3.0, 0.5][head]
        expected = brute_force(variant, q[0, head], k[0, head], allowed, scaling=0.5, temperature=temperature)
        torch.testing.assert_close(found[head], expected, atol=1e-13, rtol=1e-12)
        assert (found[head][~allowed] == 0).all()


def test_linear_attention_is_the_recurrence_of_its_paper() -> None:
    torch.manual_seed(0)
    q, k, v = torch.randn(3, 1, 2, 7, 4, dtype=torch.float64)
    mask = torch.zeros(1, 1, 7, 7, dtype=torch.float64).masked_fill(~torch.ones(7, 7).tril().bool(), -torch.inf)
    extras = variants.VariantAttention("linear", heads=2, hidden=8, initializer_range=0.1)
    found, _ = extras.attend(q, k, v, mask, scaling=0.5, dropout=0.0)
    for head in range(2):
        kept, total = torch.zeros(4, 4, dtype=torch.float64), torch.zeros(4, dtype=torch.float64)
        for i in range(7):  # what a row needs of the past does not grow with it
            asked, seen = (torch.tensor([feature(x) for x in part[0, head, i]]).double() for part in (q, k))
            kept, total = kept + torch.outer(seen, v[0, head, i]), total + seen
            torch.testing.assert_close(found[0, i, head], asked @ kept / (asked @ total), atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("arch", [*TEXT, "vit"])
def test_the_wiring_equals_eager_attention_where_the_formula_is_softmax(arch: str) -> None:
    eager, own = model_of(arch, "softmax"), model_of(arch, "softmax_one")
    own.load_state_dict(eager.state_dict())
    for module in variants.attention_modules(own):
        module.anisoscope_attention.variant = "softmax"
    eager.set_attn_implementation("eager")
    batch = inputs_of(arch)
    if arch != "vit":
        batch["attention_mask"] = torch.ones_like(batch["input_ids"])
        batch["attention_mask"][0, 8:] = 0
    valid = batch.get("attention_mask")
    expected, found = eager(**batch).logits, own(**batch).logits
    if valid is not None:
        expected, found = expected[valid.bool()], found[valid.bool()]
    # eager attention of the later families takes its softmax in float32
    tolerance = 1e-12 if arch in ("bert", "gpt2") else 1e-6
    torch.testing.assert_close(found, expected, atol=tolerance, rtol=tolerance)


def test_grouped_keys_are_shared_as_in_eager_attention() -> None:
    from transformers import LlamaConfig, LlamaModel

    torch.manual_seed(0)
    sizes = zoo.sizes(heads=4, num_key_value_heads=2, vocab_size=VOCABULARY)
    model = LlamaModel(LlamaConfig(**sizes, use_cache=False)).double().eval()
    expected = model(**inputs_of("llama")).last_hidden_state
    variants.apply(model, "softmax_one")
    for module in variants.attention_modules(model):
        module.anisoscope_attention.variant = "softmax"
    torch.testing.assert_close(model(**inputs_of("llama")).last_hidden_state, expected, atol=1e-12, rtol=1e-12)


def test_gates_multiply_the_output_of_each_head() -> None:
    model = model_of("bert", "gated")
    attention = variants.attention_modules(model)[0]
    hidden = torch.randn(1, 5, 16, dtype=torch.float64)
    gated = attention(hidden)[0].reshape(1, 5, 2, 8)
    weight = attention.anisoscope_attention.gating.weight.data.clone()
    attention.anisoscope_attention.gating.weight.data.zero_()  # every gate is one half
    plain = 2 * attention(hidden)[0].reshape(1, 5, 2, 8)
    gates = 1 / (1 + (-(hidden @ weight.T)).exp())
    torch.testing.assert_close(gated, plain * gates[..., None], atol=1e-13, rtol=1e-12)


@pytest.mark.parametrize(("arch", "variant"), PAIRS)
def test_gradients_flow_to_every_weight_that_is_trained(arch: str, variant: str) -> None:
    model = model_of(arch, variant).train()
    batch = inputs_of(arch)
    batch["labels"] = torch.tensor([0, 1]) if arch == "vit" else batch["input_ids"]
    model(**batch).loss.backward()
    silent = [name for name, p in model.named_parameters() if p.requires_grad and (p.grad is None or not p.grad.any())]
    # a bias of the keys shifts every score of a row alike, or is cancelled by centring: no gradient by theory
    assert [name for name in silent if "key.bias" not in name and "k_proj.bias" not in name] in (
        [],
        [name for name in silent if variant == "query_centred" and ("query.bias" in name or "q_proj.bias" in name)],
    )


@pytest.mark.parametrize(("arch", "variant"), PAIRS)
def test_a_saved_model_reopens_with_the_same_outputs(arch: str, variant: str, tmp_path) -> None:
    model = model_of(arch, variant)
    for name, parameter in model.named_parameters():
        if variants.NAME in name:
            parameter.data += torch.randn_like(parameter)  # as if it had learned
    model.save_pretrained(tmp_path)
    again = variants.restore(type(model).from_pretrained(tmp_path, dtype=torch.float64), tmp_path).eval()
    batch = inputs_of(arch)
    torch.testing.assert_close(again(**batch).logits, model(**batch).logits, atol=0, rtol=0)

    body = variants.restore(AutoModel.from_pretrained(tmp_path, dtype=torch.float64), tmp_path).eval()
    expected = model.base_model(**batch).last_hidden_state
    torch.testing.assert_close(body(**batch).last_hidden_state, expected, atol=0, rtol=0)


@pytest.mark.parametrize(("arch", "variant"), PAIRS)
def test_an_opened_variant_computes_what_was_saved(arch: str, variant: str, tmp_path) -> None:
    model = model_of(arch, variant, dtype=torch.float32)
    for name, parameter in model.named_parameters():
        if variants.NAME in name:
            parameter.data += torch.randn_like(parameter)
    model.save_pretrained(tmp_path)
    processor_of(arch).save_pretrained(tmp_path)
    opened, headed = (open_model(tmp_path, head=head).module for head in (False, arch != "vit"))
    batch = {name: x.float() if x.is_floating_point() else x for name, x in inputs_of(arch).items()}
    with torch.no_grad():
        found = opened(**batch).last_hidden_state
        torch.testing.assert_close(found, model.base_model(**batch).last_hidden_state, atol=1e-6, rtol=1e-6)
        if arch != "vit":
            found = headed(**batch).logits
            torch.testing.assert_close(found, model(**batch).logits, atol=1e-6, rtol=1e-6)
    assert variants.restore(opened, tmp_path) is opened, "once is enough"


def processor_of(arch: str):
    if arch == "vit":
        return ViTImageProcessor(size={"height": 8, "width": 8})
    return byte_tokenizer(length=LENGTH, wrap=arch == "bert")


@pytest.mark.parametrize(("arch", "variant"), [pair for pair in PAIRS if pair[0] != "llama"])
def test_training_lowers_the_loss(arch: str, variant: str) -> None:
    """On a fresh batch of the task."""
    model = model_of(arch, variant, dtype=torch.float32, layers=1).train()
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-2)
    before = model(**task_of(arch, seed=1000)).loss.item()
    for step in range(120):
        optimizer.zero_grad()
        model(**task_of(arch, seed=step)).loss.backward()
        optimizer.step()
    assert model(**task_of(arch, seed=1000)).loss.item() < 0.5 * before


def task_of(arch: str, *, seed: int) -> dict[str, torch.Tensor]:
    """Eight examples of a task that needs attention.

    Causal: counting upwards from a random token. Masked: the one token that the whole row repeats. Images: which half
    is bright.
    """
    draw = torch.Generator().manual_seed(seed)
    if arch == "vit":
        labels = torch.randint(2, (8,), generator=draw)
        images = torch.randn(8, 3, 8, 8, generator=draw)
        images[:, :, :4] += (2 * labels - 1)[:, None, None, None]
        return {"pixel_values": images, "labels": labels}
    start = torch.randint(30, (8, 1), generator=draw)
    if arch != "bert":
        tokens = (start + torch.arange(LENGTH)) % 30 + 5
        return {"input_ids": tokens, "labels": tokens}
    tokens = start.expand(8, LENGTH) + 5
    hidden = torch.rand(tokens.shape, generator=draw) < 0.2
    hidden[:, 3] = True
    return {"input_ids": tokens.where(~hidden, 4), "labels": tokens.where(hidden, -100)}


def test_a_reopened_model_without_its_variant_would_differ(tmp_path) -> None:
    """So the test above can fail."""
    model = model_of("bert", "sigmoid")
    model.save_pretrained(tmp_path)
    plain = AutoModel.from_pretrained(tmp_path, dtype=torch.float64).eval()
    batch = inputs_of("bert")
    assert not torch.allclose(plain(**batch).last_hidden_state, model.base_model(**batch).last_hidden_state, atol=1e-3)


def test_missing_extras_are_said(tmp_path) -> None:
    model_of("bert", "softmax").save_pretrained(tmp_path)
    config = tmp_path / "config.json"
    config.write_text(config.read_text().replace("{", '{"anisoscope_attention": "cosine",', 1))
    with pytest.raises(ModelError, match="not in the checkpoint"):
        variants.restore(AutoModel.from_pretrained(tmp_path), tmp_path)


@pytest.mark.parametrize(("arch", "variant"), [pair for pair in PAIRS if pair[0] in CAUSAL])
def test_causal_models_do_not_look_ahead(arch: str, variant: str) -> None:
    model, batch = model_of(arch, variant), inputs_of(arch)
    before = model(**batch).logits
    batch["input_ids"][:, 7:] = batch["input_ids"][:, 7:].flip(0)
    after = model(**batch).logits
    torch.testing.assert_close(after[:, :7], before[:, :7], atol=1e-12, rtol=1e-12)
    assert not torch.allclose(after[:, 7:], before[:, 7:], atol=1e-3)


@pytest.mark.parametrize(("arch", "variant"), [pair for pair in PAIRS if pair[0] != "vit"])
def test_padding_and_the_rest_of_the_batch_are_ignored(arch: str, variant: str) -> None:
    model, batch = model_of(arch, variant), inputs_of(arch)
    alone = model(input_ids=batch["input_ids"][:1, :8]).logits
    batch["attention_mask"] = torch.ones_like(batch["input_ids"])
    batch["attention_mask"][0, 8:] = 0
    torch.testing.assert_close(model(**batch).logits[:1, :8], alone, atol=1e-12, rtol=1e-12)


def test_a_drift_of_the_queries_cannot_act_when_they_are_centred() -> None:
    batch = inputs_of("bert")
    for variant, acts in (("query_centred", False), ("softmax", True)):
        model = model_of("bert", variant)
        before = model(**batch).logits
        for module in variants.attention_modules(model):
            module.query.bias.data += 3 * torch.randn_like(module.query.bias)
        assert torch.allclose(model(**batch).logits, before, atol=1e-10) is not acts


def test_norms_of_queries_and_keys_cannot_act_in_cosine_attention() -> None:
    model, batch = model_of("bert", "cosine"), inputs_of("bert")
    before = model(**batch).logits
    for module in variants.attention_modules(model):
        for projection in (module.query, module.key):
            projection.weight.data *= 7
            projection.bias.data *= 7
    torch.testing.assert_close(model(**batch).logits, before, atol=1e-12, rtol=1e-12)


def test_biases_stay_at_zero_through_training_and_in_the_checkpoint(tmp_path) -> None:
    model = model_of("gpt2", "no_bias").train()
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-2)
    batch = inputs_of("gpt2")
    for _ in range(3):
        model(**batch, labels=batch["input_ids"]).loss.backward()
        optimizer.step()
    model.save_pretrained(tmp_path)
    reopened = AutoModel.from_pretrained(tmp_path)
    biases = [module.c_attn.bias for module in variants.attention_modules(reopened)]
    assert len(biases) == 2
    assert not any(bias.any() for bias in biases)


def test_centred_queries_refuse_a_cache() -> None:
    model = model_of("gpt2", "query_centred")
    first = model(input_ids=inputs_of("gpt2")["input_ids"][:, :6], use_cache=True)
    with pytest.raises(ModelError, match="use_cache=False"):
        model(input_ids=torch.tensor([[7], [8]]), past_key_values=first.past_key_values)


def test_what_cannot_be_varied_is_said() -> None:
    with pytest.raises(UsageError, match="softmax_one"):
        variants.apply(model_of("bert", "softmax"), "softermax")
    with pytest.raises(UsageError, match="no bias"):
        variants.apply(model_of("llama", "softmax"), "no_bias")
    convnet = build(Recipe(arch="convnet", data=["-"]), seed=0, classes=2)
    with pytest.raises(ModelError, match="convnext"):
        variants.apply(convnet, "gated")


def test_all_variants_of_a_seed_start_from_the_same_shared_weights() -> None:
    recipe = Recipe(data=["-"], layers=2, hidden=16, heads=2, length=LENGTH)
    plain = dict(build(recipe, seed=5, vocabulary=VOCABULARY).named_parameters())
    for variant in variants.OWN_KERNEL:
        other = variants.apply(build(recipe, seed=5, vocabulary=VOCABULARY), variant)
        shared = {name: p for name, p in other.named_parameters() if variants.NAME not in name}
        assert shared.keys() == plain.keys()
        assert all(torch.equal(shared[name], plain[name]) for name in plain)


def test_half_precision_scores_are_weighed_in_float32() -> None:
    scores = torch.full((1, 1, 1, 4096), 8.0, dtype=torch.bfloat16)
    for variant in variants.VARIANTS:
        assert variants.weights(variant, scores, None).dtype == torch.float32
    assert isinstance(variants.VariantAttention("gated", heads=2, hidden=4, initializer_range=0.1).gating, nn.Linear)
