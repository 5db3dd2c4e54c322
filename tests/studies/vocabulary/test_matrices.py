"""Vocabulary matrices: I(W) against plain float64, what is found in which model, series, frequency."""

from __future__ import annotations

import numpy as np
import pytest

import zoo
from anisoscope.errors import InputError, ModelError
from anisoscope.inputs.sources import Document, open_source
from anisoscope.models.open import open_model
from anisoscope.studies.vocabulary.matrices import Matrix, measure_matrix, spearman, token_counts, vocabulary_matrices


def opened(name: str, *, head: bool = True, seed: int = 0):
    return open_model(zoo.module(name, seed, head=head), processor=zoo.processor(name))


def shifted(scale: float = 1.0, rows: int = 300, d: int = 12) -> np.ndarray:
    generator = np.random.default_rng(5)
    return scale * (generator.standard_normal((rows, d)) * np.linspace(0.2, 1.0, d) + 0.3)


def plain_partition(w: np.ndarray, *, both: bool) -> float:
    """I(W) by the book: eigenvectors of WᵀW, exp, sum, min over max."""
    _, vectors = np.linalg.eigh(w.T @ w)
    scores = w @ (np.concatenate([vectors, -vectors], axis=1) if both else vectors)
    peak = scores.max()
    z = np.exp(scores - peak).sum(0)
    return float(z.min() / z.max())


def values(rows: list) -> dict[tuple[str, str], float]:
    return {(row.site, row.metric): row.value for row in rows if row.positions == "all" and row.at is None}


@pytest.mark.parametrize("centred", [False, True])
def test_partition_equals_plain_float64_in_both_conventions(centred: bool) -> None:
    w = shifted()
    found = values(measure_matrix(Matrix("vocabulary.input", w, False))[0])
    site = "vocabulary.input.centred" if centred else "vocabulary.input"
    cloud = w - w.mean(0) if centred else w
    assert found[site, "partition_both"] == pytest.approx(plain_partition(cloud, both=True), rel=1e-9)
    assert found[site, "partition_one_sided"] == pytest.approx(plain_partition(cloud, both=False), rel=1e-6)
    assert found[site, "partition_one_sided_float32"] == pytest.approx(found[site, "partition_one_sided"], rel=1e-3)


def test_partition_survives_norms_of_500() -> None:
    w = shifted()
    rows, _ = measure_matrix(Matrix("vocabulary.input", w * (500 / np.linalg.norm(w, axis=1).max()), False))
    by_metric = {row.metric: row for row in rows if row.site == "vocabulary.input"}
    both = by_metric["partition_both"]
    assert both.value is not None
    assert 0 < both.value < 1e-50
    assert by_metric["partition_one_sided_float32"].value is None
    assert "overflow" in by_metric["partition_one_sided_float32"].note


def test_partition_depends_on_scale_and_the_cosine_does_not() -> None:
    once = values(measure_matrix(Matrix("vocabulary.input", shifted(), False))[0])
    thrice = values(measure_matrix(Matrix("vocabulary.input", shifted(3.0), False))[0])
    assert thrice["vocabulary.input", "partition_both"] < once["vocabulary.input", "partition_both"] ** 2
    for metric in ("mean_cosine", "drift_ratio", "isoscore"):
        assert thrice["vocabulary.input", metric] == pytest.approx(once["vocabulary.input", metric], abs=1e-9)


def test_mean_cosine_is_exact_and_centring_removes_the_drift() -> None:
    w = shifted()
    unit = w / np.linalg.norm(w, axis=1, keepdims=True)
    pairs = (unit @ unit.T)[~np.eye(len(w), dtype=bool)]
    found = values(measure_matrix(Matrix("vocabulary.input", w, False))[0])
    assert found["vocabulary.input", "mean_cosine"] == pytest.approx(pairs.mean(), abs=1e-12)
    assert found["vocabulary.input", "drift_ratio"] > 0.1
    assert found["vocabulary.input.centred", "drift_ratio"] < 1e-20


@pytest.mark.parametrize(
    ("name", "head", "sites", "tied"),
    [
        ("gpt2", True, ["vocabulary.input"], True),
        ("bert", True, ["vocabulary.input"], True),
        ("gpt_neox", True, ["vocabulary.input", "vocabulary.output"], False),
        ("llama", True, ["vocabulary.input", "vocabulary.output"], False),
        ("gpt_neox", False, ["vocabulary.input"], False),
    ],
)
def test_matrices_are_found_and_ties_are_seen(name: str, head: bool, sites: list[str], tied: bool) -> None:
    model = opened(name, head=head)
    found = vocabulary_matrices(model)
    assert [matrix.site for matrix in found] == sites
    assert found[0].tied is tied
    np.testing.assert_array_equal(found[0].weights, model.module.get_input_embeddings().weight.numpy())  # pyright: ignore


def test_a_model_without_vocabulary_is_refused() -> None:
    with pytest.raises(ModelError, match="no vocabulary"):
        vocabulary_matrices(opened("vit", head=False))


def test_pictures_lie_on_the_first_two_singular_directions() -> None:
    w = shifted()
    _, arrays = measure_matrix(Matrix("vocabulary.input", w, False), points=len(w))
    singular = np.linalg.svd(w, compute_uv=False)
    np.testing.assert_allclose(np.linalg.norm(arrays["points"], axis=0), singular[:2], rtol=1e-4)
    np.testing.assert_allclose(np.sqrt(arrays["eigenvalues"] * len(w)), singular, rtol=1e-6)
    assert arrays["points"][:, 0].mean() > 0


def test_frequency_is_related_to_norm_and_first_component() -> None:
    model = opened("gpt2")
    text = open_source(["the dog saw the cat and the bird", "the end"], "text")
    counts = token_counts(model, text)
    ids = model.processor("the dog saw the cat and the bird")["input_ids"] + model.processor("the end")["input_ids"]
    assert counts.sum() == len(ids)
    assert counts[ids[0]] == ids.count(ids[0])
    grown = np.outer(1 + np.log1p(np.pad(counts, (0, 400 - len(counts)))), np.ones(6))
    grown += 1e-3 * np.random.default_rng(0).standard_normal(grown.shape)
    rows, _ = measure_matrix(Matrix("vocabulary.input", grown, False), counts=counts)
    found = {row.metric: row for row in rows if row.site == "vocabulary.input" and row.metric.startswith("spearman")}
    for name in ("norm", "first_component"):
        row = found[f"spearman_log_frequency_{name}"]
        assert row.value is not None
        assert row.value > 0.5
        assert row.n == (counts > 0).sum()


def test_spearman_equals_scipy_and_needs_four_pairs() -> None:
    from scipy.stats import spearmanr

    generator = np.random.default_rng(1)
    a = generator.standard_normal(200)
    b = a + generator.standard_normal(200)
    value, low, high = spearman(a, b)
    assert value == pytest.approx(spearmanr(a, b).statistic)  # pyright: ignore[reportAttributeAccessIssue]
    assert low is not None
    assert high is not None
    assert low < value < high  # pyright: ignore[reportOptionalOperand]
    assert spearman(a[:3], b[:3]) == (None, None, None)


def test_tokens_of_a_model_without_a_vocabulary_are_not_counted() -> None:
    with pytest.raises(ModelError, match="no vocabulary"):
        token_counts(opened("character_bert"), open_source(["the dog saw"], "text"))


@pytest.mark.parametrize("wrong", [400, 10**12])
def test_a_token_without_a_row_is_refused(wrong: int) -> None:
    text = open_source([Document("a", "", ids=(5, 9)), Document("b", "", ids=(7, wrong))], "text")
    with pytest.raises(InputError, match=rf"document b\n  got:      {wrong}\n(.|\n)*0 to 399"):
        token_counts(opened("gpt2"), text)


def test_documents_of_token_ids_are_counted_as_they_are_and_a_limit_holds() -> None:
    text = open_source([Document("a", "", ids=(5, 5, 9)), Document("b", "", ids=(7,))], "text")
    assert token_counts(opened("gpt2"), text).tolist() == [0, 0, 0, 0, 0, 2, 0, 1, 0, 1]
    assert token_counts(opened("gpt2"), text, limit=1).sum() == 3
