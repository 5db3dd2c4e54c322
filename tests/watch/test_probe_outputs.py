"""What the probe says of logits, gradients and spectra, against autograd and numpy in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from transformers import BertConfig, BertForMaskedLM, GPT2Config, GPT2LMHeadModel

from anisoscope.runs.work.observers.outputs import OutputSums
from anisoscope.watch.probe import Probe

V, D, B, T = 61, 16, 12, 9
Inputs = dict[str, torch.Tensor]


def _causal() -> Any:
    torch.manual_seed(0)
    sizes = {"vocab_size": V, "n_embd": D, "n_layer": 2, "n_head": 2, "n_positions": T}
    return GPT2LMHeadModel(GPT2Config(**sizes, initializer_range=0.4)).eval()  # type: ignore[arg-type]


def _masked() -> Any:
    torch.manual_seed(1)
    sizes = {"hidden_size": D, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 2 * D}
    config = BertConfig(vocab_size=V, max_position_embeddings=T, initializer_range=0.4, **sizes)  # type: ignore[arg-type]
    return BertForMaskedLM(config).eval()


def _batch(*, labels: bool = False) -> Inputs:
    ids, mask = torch.randint(3, V, (B, T), generator=torch.Generator().manual_seed(2)), torch.ones(B, T)
    mask[0, 6:] = 0
    batch = {"input_ids": ids, "attention_mask": mask.long()}
    wanted = torch.full((B, T), -100)
    wanted[:, 2:4] = ids[:, 2:4]
    return batch | ({"labels": wanted} if labels else {})


def _values(model: Any, batch: Inputs, **options: Any) -> dict[str, Any]:
    rows = Probe(batch, attention=False, **options).run(model).as_rows(step=0)
    return {row.metric: row for row in rows if row.site == "logits"}


def _run(model: Any, batch: Inputs) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits and what entered the head, (B, T, …) in float64."""
    kept: list[torch.Tensor] = []
    hook = model.get_output_embeddings().register_forward_pre_hook(lambda _, given: kept.append(given[0]))
    with torch.no_grad():
        logits = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits
    hook.remove()
    return logits.double(), kept[0].double()


@pytest.mark.parametrize("kind", ["causal", "masked"])
def test_logits_are_summed_over_all_positions_but_padding(kind: str) -> None:
    model, batch = (_causal() if kind == "causal" else _masked()), _batch()
    found = _values(model, batch)
    z = _run(model, batch)[0][batch["attention_mask"].bool()]
    level, p = z.logsumexp(-1), z.softmax(-1)
    expected = {"logsumexp": level, "logsumexp_square": level.square(), "logit_norm": z.norm(dim=-1)}
    expected |= {"prediction_entropy": -(p * p.log()).sum(-1)}
    for name, values in expected.items():
        assert found[name].value == pytest.approx(values.mean().item(), rel=1e-5), name
        assert found[name].low < found[name].value < found[name].high
    assert found["logsumexp"].null == pytest.approx(np.log(V))


@pytest.mark.parametrize("kind", ["causal", "masked"])
def test_the_gradient_at_the_head_is_that_of_autograd(kind: str) -> None:
    model, batch = (_causal(), _batch()) if kind == "causal" else (_masked(), _batch(labels=True))
    found = _values(model, batch)
    valid = batch["attention_mask"].bool()
    if kind == "masked":
        labels = batch["labels"]
    else:
        labels = torch.full((B, T), -100)
        labels[:, :-1] = torch.where(valid, batch["input_ids"], -100)[:, 1:]
    asked, states = labels >= 0, _run(model, batch)[1]
    states = states[asked].requires_grad_()
    head = model.get_output_embeddings()
    z = states @ head.weight.detach().double().T + (0.0 if head.bias is None else head.bias.detach().double())
    z.retain_grad()
    loss = torch.nn.functional.cross_entropy(z, labels[asked], reduction="sum")
    loss.backward()
    assert z.grad is not None
    assert states.grad is not None
    gradient, basis = z.grad.numpy(), np.linalg.qr(head.weight.detach().double().numpy())[0]  # (n, V), (V, d)
    share = np.linalg.norm(gradient @ basis) / np.linalg.norm(gradient)
    assert found["loss"].value == pytest.approx(loss.item() / int(asked.sum()), rel=1e-5)
    assert found["head_gradient_share"].value == pytest.approx(share, rel=1e-5)
    assert found["head_gradient_share"].n == int(asked.sum())
    top = np.linalg.svd(states.detach().numpy(), full_matrices=False)[2][: D // 10]
    passed = states.grad.numpy()
    energy = ((passed @ top.T) ** 2).sum() / (passed**2).sum()
    assert found["gradient_top_energy"].value == pytest.approx(energy, rel=1e-4)
    assert found["gradient_top_energy"].null == (D // 10) / D


def test_without_labels_there_is_no_gradient_and_without_a_head_there_are_no_logits() -> None:
    assert set(_values(_masked(), _batch())) == {"logsumexp", "logsumexp_square", "logit_norm", "prediction_entropy"}
    assert _values(_causal().transformer, _batch()) == {}
    assert _values(_causal(), _batch(), logits=False) == {}


def test_a_head_whose_logits_are_changed_afterwards_has_no_gradient() -> None:
    model = _causal()
    forward = model.forward

    def capped(*args: Any, **named: Any) -> Any:
        output = forward(*args, **named)
        output.logits = 2 * torch.tanh(output.logits / 2)
        return output

    model.forward = capped
    found = _values(model, _batch())
    assert "logsumexp" in found
    assert "loss" not in found


def test_sums_of_outputs_merge_and_survive_storage() -> None:
    model, batch = _causal(), _batch()
    whole = Probe(batch, attention=False).run(model).output
    halves = [Probe({n: t[part] for n, t in batch.items()}, attention=False) for part in (slice(0, 5), slice(5, B))]
    halves[1].batches[0].keys[:] = [str(k) for k in range(5, B)]
    first, second = (half.run(model).output for half in halves)
    read = OutputSums()
    read.load(second.state())
    read.merge(first)
    for name, expected in whole.state().items():
        np.testing.assert_allclose(read.state()[name], expected, rtol=1e-5, atol=1e-4, err_msg=name)


def test_the_spectrum_of_the_probe_is_that_of_its_states() -> None:
    model, batch = _causal(), _batch()
    rows = {(row.site, row.metric): row for row in Probe(batch, attention=False).run(model).as_rows(step=0)}
    with torch.no_grad():
        states = model(**batch, output_hidden_states=True).hidden_states[1]
    x = states[batch["attention_mask"].bool()].double().numpy()
    values = np.linalg.svd(x - x.mean(0), compute_uv=False) ** 2
    p, sigma = values / values.sum(), np.linalg.svd(x, compute_uv=False)
    q = sigma / sigma.sum() + 1e-7
    found = {name: rows["block.0", name] for name in ("effective_rank", "rankme", "power_law_alpha")}
    assert found["effective_rank"].value == pytest.approx(np.exp(-(p * np.log(p)).sum()), rel=1e-5)
    assert found["rankme"].value == pytest.approx(np.exp(-(q * np.log(q)).sum()), rel=1e-5)
    assert found["power_law_alpha"].value is None, "16 eigenvalues are too few"
    assert found["effective_rank"].n == len(x)
    growth = rows["block.1", "mean_norm"].value / rows["block.0", "mean_norm"].value  # type: ignore[operator]
    assert rows["block.1", "norm_growth"].value == pytest.approx(growth, rel=1e-9)
