"""Interventions: exact no-ops where theory says so, real effects where it does not, and the model left as it was."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import zoo
from anisoscope.capture.sites import find_sites
from anisoscope.errors import UsageError
from anisoscope.inputs.sources import Document, MemorySource
from anisoscope.models.batches import make_batches
from anisoscope.models.open import OpenModel, open_model, weights_hash
from anisoscope.runs.table import Row
from anisoscope.studies.interventions import applied, find_means, intervene

TEXT = "the cat sat on the mat and looked at the small bird that sang in the old tree by the river "


@pytest.fixture(scope="module", params=["bert", "gpt2", "llama"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> OpenModel:
    folder = tmp_path_factory.mktemp(request.param)
    zoo.save(request.param, folder)
    return open_model(folder)


def batches(model: OpenModel):
    words = TEXT.split()
    rng = np.random.default_rng(0)
    texts = [Document(f"text {i}", " ".join(rng.permutation(words))) for i in range(12)]
    return make_batches(model, MemorySource(texts, modality="text", name="small texts"), length=16)


def value(rows: list[Row], site: str, metric: str) -> float:
    found = [row.value for row in rows if row.site == site and row.metric == metric]
    assert len(found) == 1
    assert found[0] is not None
    return found[0]


def last_state(model: OpenModel, name: str | None) -> torch.Tensor:
    data = batches(model)
    blocks = [site for site in find_sites(model.module) if site.kind == "block"]
    means = find_means(model, data, blocks, attention=True)
    _, batch = next(iter(data))
    with torch.inference_mode():
        if name is None:
            return model.module(**batch.inputs).last_hidden_state
        with applied(model, name, means, blocks, lambda *_: None):
            return model.module(**batch.inputs).last_hidden_state


def test_the_mean_of_the_scored_keys_is_invisible_to_softmax(model: OpenModel) -> None:
    assert (last_state(model, "mean_key") - last_state(model, None)).abs().max() < 1e-5


def test_the_mean_query_and_the_mean_state_matter(model: OpenModel) -> None:
    untouched = last_state(model, None)
    for name in ("mean_query", "mean_hidden", "top_components", "drift@2"):
        assert (last_state(model, name) - untouched).abs().max() > 1e-4, name


def test_the_model_is_left_as_it_was(model: OpenModel) -> None:
    before = weights_hash(model.module)
    implementation = model.module.config._attn_implementation
    rows = intervene(model, batches(model), what=("mean_query", "final_norm_bias", "mean_hidden"))
    assert weights_hash(model.module) == before
    assert model.module.config._attn_implementation == implementation
    assert {"untouched", "mean_hidden", "mean_hidden.control"} <= {row.site for row in rows}


def test_removing_the_mean_state_takes_the_cosine_of_the_last_block_down(model: OpenModel) -> None:
    last = [site.name for site in find_sites(model.module) if site.kind == "block"][-1]
    rows = intervene(model, batches(model), what=("mean_hidden",), layers=last)
    assert value(rows, "mean_hidden", "last_cosine") < value(rows, "untouched", "last_cosine")


@pytest.mark.parametrize("name", ["bert", "gpt2"])
def test_the_loss_is_that_of_the_library(name: str, tmp_path) -> None:
    zoo.save(name, tmp_path)
    head = {"bert": "BertForMaskedLM", "gpt2": "GPT2LMHeadModel"}[name]
    import transformers

    body = open_model(tmp_path)
    torch.manual_seed(0)
    network = getattr(transformers, head)(body.module.config).eval()
    model = open_model(network, processor=body.processor)
    rows = intervene(model, batches(model), what=("mean_key",))
    assert value(rows, "mean_key", "kl") == pytest.approx(0.0, abs=1e-6)
    assert value(rows, "mean_key", "loss_change") == pytest.approx(0.0, abs=1e-5)
    if name == "gpt2":
        total, tokens = 0.0, 0
        for _, batch in batches(model):
            labels = torch.where(batch.valid & ~batch.special, batch.inputs["input_ids"], -100)
            with torch.inference_mode():
                loss = network(**batch.inputs, labels=labels).loss
            count = int((labels[:, 1:] >= 0).sum())
            total, tokens = total + float(loss) * count, tokens + count
        assert value(rows, "untouched", "loss") == pytest.approx(total / tokens, abs=1e-5)


def test_an_unknown_intervention_is_refused(model: OpenModel) -> None:
    with pytest.raises(UsageError, match="unknown intervention"):
        intervene(model, batches(model), what=("lobotomy",))
