"""Norms: parameters by probing, the implied cosine on a constructed case, before and after in every kind of model."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from torch import nn
from transformers import Gemma2Config, Gemma2Model

import zoo
from anisoscope.accumulate.moments import Moments
from anisoscope.errors import ModelError
from anisoscope.geometry.cosine import mean_cosine_inter
from anisoscope.inputs.sources import open_source
from anisoscope.models.batches.plan import make_batches
from anisoscope.models.open import open_model
from anisoscope.report.figures.final_norm import figure_m3
from anisoscope.runs.measurement import Measurement
from anisoscope.runs.merging import merge_runs
from anisoscope.runs.perform import perform
from anisoscope.runs.settings import Machine
from anisoscope.runs.store import open_run
from anisoscope.runs.work import passes
from anisoscope.studies.final_norm import ABLATIONS, story
from anisoscope.studies.final_norm.norms import Norm, find_norms, probe
from anisoscope.studies.final_norm.rows import ablation_rows, check_norm

TEXTS = [f"number {k} is {k * k} squared, and {k + 1} comes after it; so it goes on and on." for k in range(40)]


def measured(name: str, data: list[str] | None = TEXTS, **settings) -> Measurement:
    """The study of one model in memory."""
    given = {"models": [zoo.module(name)], "processor": zoo.processor(name), "data": data}
    return perform("final-norm", {"models": [name], **settings}, given=given)


@pytest.mark.parametrize("width", [8, 9])
def test_probing_a_layernorm_reads_its_parameters(width: int) -> None:
    norm = nn.LayerNorm(width)
    nn.init.normal_(norm.weight)
    nn.init.normal_(norm.bias)
    gain, bias, kind = probe(norm)
    assert kind == "LayerNorm"
    torch.testing.assert_close(gain, norm.weight.detach().double(), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(bias, norm.bias.detach().double(), atol=1e-5, rtol=1e-5)


def test_probing_an_rmsnorm_that_stores_gain_minus_one() -> None:
    sizes = zoo.sizes(layers=1, num_key_value_heads=1, head_dim=8, vocab_size=50)
    norm = Gemma2Model(Gemma2Config(**sizes)).eval().norm
    norm.weight.data.normal_()
    gain, bias, kind = probe(norm)
    assert kind == "RMSNorm"
    torch.testing.assert_close(gain, 1 + norm.weight.detach().double(), atol=1e-5, rtol=1e-5)
    assert bias.abs().max() < 1e-6


def test_the_implied_cosine_is_exact_where_it_must_be() -> None:
    """Unit gain, bias along (1, …, 1), which is orthogonal to every x̂; the x̂ of each sequence sum to zero."""
    beta, d = 0.7, 8
    patterns = [p for p in itertools.product((-1.0, 1.0), repeat=d) if sum(p) == 0][:20]
    half = torch.tensor(patterns[:10], dtype=torch.float64)
    norm = Norm("final_norm", "norm", "LayerNorm", torch.ones(d).double(), torch.full((d,), beta).double())
    sequences = [
        torch.cat([half[k : k + 2], -half[k : k + 2]]) * (k + 1) for k in range(8)
    ]  # any length: x̂ is the same
    y = norm.apply(torch.cat(sequences)).numpy()
    unit = y / np.linalg.norm(y, axis=1, keepdims=True)
    sums = unit.reshape(8, 4, d).sum(1)
    measured = mean_cosine_inter(unit.sum(0), len(unit), energy=(sums**2).sum(), pairs=8 * 16)
    assert norm.ratio == pytest.approx(beta)
    assert norm.implied_cosine == pytest.approx(beta**2 / (1 + beta**2))
    assert measured == pytest.approx(norm.implied_cosine, abs=1e-12)


EXPECTED = {
    "gpt2": ("LayerNorm", ["final_norm"]),
    "gpt_neox": ("LayerNorm", ["final_norm"]),
    "llama": ("RMSNorm", ["final_norm"]),
    "bert": ("LayerNorm", ["block.0", "block.1", "block.2"]),
    "vit": ("LayerNorm", ["final_norm"]),
    "t5": ("RMSNorm", ["encoder.final_norm", "decoder.final_norm"]),
    "wav2vec2": ("LayerNorm", ["block.0", "block.1", "block.2"]),
}


@pytest.mark.parametrize("name", EXPECTED)
def test_the_norms_that_close_are_found(name: str) -> None:
    norms, _ = find_norms(zoo.module(name))
    kind, closing = EXPECTED[name]
    assert [norm.closes for norm in norms if norm.closes is not None] == closing
    assert all(norm.kind == kind for norm in norms if norm.closes is not None)
    assert all(norm.has_bias == (kind == "LayerNorm") for norm in norms if norm.closes is not None)


@pytest.mark.parametrize("name", ["gpt2", "gpt_neox", "llama", "bert"])
def test_text_models_are_measured_before_and_after_their_norms(name: str) -> None:
    found = measured(name, length=32)
    value = {(row.site, row.metric): row.value for row in found.rows if row.positions == "all" and row.at is None}
    closing = [site for site, metric in value if metric == "cosine_above_implied"]
    assert closing == EXPECTED[name][1]
    for site in closing:
        above = value[site, "mean_cosine"] - value[site, "implied_cosine"]
        assert value[site, "cosine_above_implied"] == pytest.approx(above)
        assert value[f"{site}.as_it_is", "mean_cosine"] == pytest.approx(value[site, "mean_cosine"], abs=0.05)
        for ablation in ABLATIONS:
            assert -1 <= value[f"{site}.{ablation}", "mean_cosine_intra"] <= 1
        before = f"{site}.before_norm" if name == "bert" else "block.2"
        assert value[site, "mean_cosine_before"] == value[before, "mean_cosine"]
        assert (value[site, "bias_norm"] is None) == (name == "llama")
    assert f"{closing[-1]}: mean cosine {value[closing[-1], 'mean_cosine_before']:.3g} before" in str(found.verdict)
    assert f"in a sample {value[f'{closing[-1]}.as_it_is', 'mean_cosine']:.3g} as it is" in str(found.verdict)
    assert ("b = 0" in str(found.verdict)) == (name != "llama")
    shown = dict(zip(story(found.rows).tables[0].columns, story(found.rows).tables[0].cells[0], strict=True))
    assert (shown["b = 0"] == "–") == (name == "llama")


def test_a_vision_model_is_measured_too() -> None:
    metrics = {(row.site, row.metric) for row in measured("vit", None, limit=12).rows}
    assert ("final_norm", "cosine_above_implied") in metrics
    assert ("final_norm.mean_removed", "mean_cosine") in metrics


def test_the_site_before_a_post_norm_is_what_enters_it() -> None:
    """Against a plain hook on the norm of BERT's last block."""
    model = open_model(zoo.module("bert"), processor=zoo.processor("bert"))
    inputs: list[torch.Tensor] = []
    norm = model.module.get_submodule("encoder.layer.2.output.LayerNorm")
    hook = norm.register_forward_pre_hook(lambda _module, args: inputs.append(args[0]))
    source = open_source(TEXTS, "text")
    with torch.no_grad():
        for _, batch in make_batches(model, source, length=32):
            model.module(**batch.inputs)
            inputs[-1] = inputs[-1][batch.valid]
    hook.remove()
    x = torch.cat(inputs).double()
    unit = (x / x.norm(dim=1, keepdim=True)).sum(0)
    expected = ((unit @ unit).item() - len(x)) / (len(x) * (len(x) - 1))

    row = next(
        r for r in measured("bert", length=32).rows if (r.site, r.metric) == ("block.2.before_norm", "mean_cosine")
    )
    assert row.n == len(x)
    assert row.value == pytest.approx(expected, abs=1e-6)


def test_ablations_do_what_they_say() -> None:
    d = 16
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(600, d, generator=generator) + 2 * torch.randn(d, generator=generator)
    moments = Moments(d)
    moments.update(x)
    bias = 3 * torch.randn(d, generator=generator).double()
    gain = torch.rand(d, generator=generator).double() + 0.5
    norm = Norm("final_norm", "ln_f", "LayerNorm", gain, bias, closes="final_norm", before="block.0")
    rows = ablation_rows(norm, moments, "test")
    value = {row.site.rpartition(".")[2]: row.value for row in rows if row.metric == "mean_cosine"}
    order = torch.from_numpy(moments.reservoir.sample().x).double()

    def mean_cosine(y: torch.Tensor) -> float:
        unit = y / y.norm(dim=1, keepdim=True)
        return ((unit.sum(0) @ unit.sum(0)).item() - len(y)) / (len(y) * (len(y) - 1))

    layer = nn.LayerNorm(d, eps=0.0).double()
    layer.weight.data, layer.bias.data = gain, bias
    with torch.no_grad():
        assert value["as_it_is"] == pytest.approx(mean_cosine(layer(order)), abs=1e-9)
        assert value["mean_removed"] == pytest.approx(mean_cosine(layer(order - order.mean(0))), abs=1e-6)
        assert value["without_bias"] == pytest.approx(mean_cosine(layer(order) - bias), abs=1e-9)
        layer.weight.data = torch.ones(d).double()
        assert value["unit_gain"] == pytest.approx(mean_cosine(layer(order)), abs=1e-9)


def test_a_norm_that_does_not_make_its_site_is_refused() -> None:
    moments = Moments(8)
    moments.update(torch.randn(100, 8, generator=torch.Generator().manual_seed(0)))
    sample = moments.reservoir.sample()
    norm = Norm("final_norm", "ln_f", "LayerNorm", torch.ones(8).double(), torch.ones(8).double())
    with pytest.raises(ModelError, match="does not make"):
        check_norm(norm, sample, sample)


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> dict:
    """A series of two checkpoints of a post-norm model, and a text."""
    root = tmp_path_factory.mktemp("series")
    folders = [str(zoo.save("bert", root / f"checkpoint-{step}", seed=step)) for step in (0, 8)]
    (root / "texts.txt").write_text("\n".join(TEXTS))
    return {"models": folders, "data": [str(root / "texts.txt")], "documents": "lines", "length": 32}


@pytest.fixture(scope="module")
def whole(settings: dict) -> Measurement:
    return perform("final-norm", settings)


def test_a_series_has_one_line_for_each_step_and_norm(whole: Measurement) -> None:
    assert {row.step for row in whole.rows} == {0, 8}
    (table,) = story(whole.rows).tables
    assert [cells[:2] for cells in table.cells] == [[step, f"block.{k}"] for step in ("0", "8") for k in range(3)]
    assert "–" not in {cell for cells in table.cells for cell in cells}
    widths = [max(map(len, column)) for column in zip(table.columns, *table.cells, strict=True)]
    assert sum(widths) + len(widths) <= 80
    assert str(whole.verdict).startswith("At step 8, block.2: ")


def values(found: Measurement) -> dict:
    return {
        (row.step, row.site, row.metric, row.positions, row.at): (row.value, row.low, row.high) for row in found.rows
    }


def test_a_killed_pass_goes_on_with_equal_numbers(settings: dict, tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine, done = Machine(batch_tokens=200), []
    expected = perform("final-norm", settings, machine=machine)

    def killed(self, *args, **kwargs):
        done.append(1)
        if len(done) == 4:
            raise KeyboardInterrupt
        return forward(self, *args, **kwargs)

    from transformers import BertModel

    forward = BertModel.forward
    with monkeypatch.context() as patch:
        patch.setattr(passes, "SAVE_EVERY", -1.0)
        patch.setattr(passes, "_SAVING_SHARE", float("inf"))
        patch.setattr(BertModel, "forward", killed)
        with pytest.raises(KeyboardInterrupt):
            perform("final-norm", settings, machine=machine, out=tmp_path / "run")
    resumed = perform("final-norm", settings, machine=machine, out=tmp_path / "run")
    assert values(resumed) == values(expected)


def test_shards_add_up_to_the_whole(settings: dict, whole: Measurement, tmp_path) -> None:
    for k in range(2):
        perform("final-norm", settings, machine=Machine(shard=f"{k}/2"), out=tmp_path / str(k))
    merged = values(merge_runs([tmp_path / "0", tmp_path / "1"], tmp_path / "merged"))
    expected = values(whole)
    assert merged.keys() == expected.keys()
    exact = ("mean_cosine", "mean_cosine_before", "cosine_above_implied", "drift_ratio", "implied_cosine", "gain_norm")
    for key in expected:  # the batches of a shard are others, and float32 states depend on them in the last digits
        if key[2] in exact:
            assert merged[key][0] == pytest.approx(expected[key][0], abs=1e-5), key


def test_models_that_are_no_series_are_told_by_name(tmp_path) -> None:
    folders = [str(zoo.save(name, tmp_path / name)) for name in ("gpt2", "bert")]
    (tmp_path / "texts.txt").write_text("\n".join(TEXTS[:8]))
    data = {"data": [str(tmp_path / "texts.txt")], "documents": "lines", "length": 32}
    found = perform("final-norm", {"models": folders, **data}, out=tmp_path / "run")
    assert {row.step for row in found.rows} == {None}
    tables = story(found.rows).tables
    assert [table.title for table in tables] == [f"mean cosine around norms of {name}" for name in ("gpt2", "bert")]
    assert [[cells[0] for cells in table.cells] for table in tables] == [EXPECTED["gpt2"][1], EXPECTED["bert"][1]]
    apart = [str(perform("final-norm", {"models": [folder], **data}).verdict) for folder in folders]
    assert str(found.verdict) == f"gpt2: {apart[0]} bert: {apart[1]}"
    drawn = figure_m3(open_run(tmp_path / "run")).axes
    assert [panel.get_ylabel() for panel in drawn[::3]] == ["gpt2\nfinal_norm", "bert\nblock.2"]
