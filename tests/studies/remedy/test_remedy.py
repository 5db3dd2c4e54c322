"""Remedies: each method against scikit-learn or brute force, streamed as batch, chosen on groups held out."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.decomposition import PCA
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler, normalize

import anisoscope
from anisoscope.errors import InputError, StoreError, UsageError
from anisoscope.geometry.corrections import METHODS, fit
from anisoscope.studies.remedy.estimator import Remedy

N, D = 1200, 12
rng = np.random.default_rng(0)
CLOUD = rng.standard_normal((N, D)) @ np.diag(np.geomspace(3, 0.3, D)) + np.linspace(2, 5, D)


def clusters(n: int = 3000, d: int = 32, seed: int = 0) -> np.ndarray:
    """Pairs of near twins under a large drift and a few loud dimensions that say nothing."""
    draw = np.random.default_rng(seed)
    x = np.repeat(draw.standard_normal((n // 2, d)), 2, axis=0) + 0.1 * draw.standard_normal((n, d))
    x[:, :3] = 8 * draw.standard_normal((n, 3))
    return (x + 6.0).astype(np.float32)


def reference(method: str) -> np.ndarray:
    """Each method by scikit-learn, or spelt out."""
    centred = CLOUD - CLOUD.mean(0)
    values, axes = np.linalg.eigh(np.cov(CLOUD.T, ddof=0))
    if method == "standardise":
        return StandardScaler().fit_transform(CLOUD)
    if method == "all-but-the-top":
        top = PCA(1).fit(CLOUD).components_
        return centred - centred @ top.T @ top
    if method == "whiten":
        return PCA(whiten=True).fit_transform(CLOUD)
    if method == "whiten-k":
        return PCA(6, whiten=True).fit_transform(CLOUD)
    if method == "soft-zca":
        return centred @ axes @ np.diag((values + 0.1 * values.mean()) ** -0.5) @ axes.T
    return centred


@pytest.mark.parametrize("method", METHODS)
def test_each_method_is_what_it_is_called(method):
    ours = Remedy(method).fit(CLOUD).transform(CLOUD)
    theirs = normalize(reference(method))
    np.testing.assert_allclose(np.linalg.norm(ours, axis=1), 1, atol=1e-12)
    tolerance = 1e-8 if method in ("centre", "all-but-the-top", "soft-zca") else 0.02  # the others have a small ridge
    np.testing.assert_allclose(ours @ ours.T, theirs @ theirs.T, atol=tolerance)


@pytest.mark.parametrize("method", ["centre", "soft-zca", "all-but-the-top"])
def test_fewer_dimensions_are_those_in_which_the_result_varies_most(method):
    whole = fit(CLOUD).affine(method).apply(CLOUD)
    ours = fit(CLOUD).affine(method, dims=4).apply(CLOUD)
    theirs = PCA(4).fit_transform(whole)
    np.testing.assert_allclose(ours @ ours.T, theirs @ theirs.T, atol=1e-8)


def test_streamed_in_any_pieces_equals_batch():
    batch = Remedy("whiten", dims=5).fit(CLOUD)
    streamed = Remedy("whiten", dims=5)
    for start, stop in ((0, 7), (7, 700), (700, N)):
        streamed.partial_fit(CLOUD[start:stop])
    ours, theirs = (remedy.transform(CLOUD) for remedy in (streamed, batch))
    np.testing.assert_allclose(ours @ ours.T, theirs @ theirs.T, atol=1e-9)
    assert streamed.threshold(0.05) == pytest.approx(batch.threshold(0.05), abs=1e-9)


def test_a_second_fit_forgets_the_first():
    remedy = Remedy("centre").fit(CLOUD + 100)
    np.testing.assert_allclose(remedy.fit(CLOUD).fitted().mean, CLOUD.mean(0))


def test_the_threshold_is_exceeded_by_as_many_fresh_unrelated_pairs():
    draw = np.random.default_rng(1)
    make = lambda: draw.standard_normal((4000, 16)) * np.geomspace(2, 1, 16) + 1.0  # noqa: E731
    remedy = Remedy("centre").fit(make())
    fresh = remedy.transform(make())
    cosines = (fresh @ fresh.T)[np.triu_indices(len(fresh), 1)]
    assert (cosines > remedy.threshold(0.05)).mean() == pytest.approx(0.05, abs=0.005)
    assert (cosines > remedy.threshold(0.001)).mean() == pytest.approx(0.001, abs=0.0004)


def test_best_takes_what_brings_twins_out_and_its_twins_are_found():
    x = clusters()
    remedy = Remedy().fit(x)
    assert remedy.fitted() is not None
    assert remedy.about["method"] != "none"

    def found(rows: np.ndarray) -> float:
        units = normalize(rows)
        cosines = units @ units.T
        np.fill_diagonal(cosines, -1)
        return float((cosines.argmax(1) == np.arange(len(rows)) ^ 1).mean())

    assert found(remedy.transform(x)) > found(x) + 0.3


def test_nothing_is_worth_doing_to_vectors_without_structure():
    remedy = Remedy().fit(rng.standard_normal((3000, 24)) * np.geomspace(4, 0.2, 24) + 1.0)
    remedy.fitted()
    assert remedy.about["method"] == "none"
    assert "nothing is worth doing" in remedy.about["sentence"]
    assert "no more than random directions would give" in remedy.about["sentence"], "centring gains, as it must"
    np.testing.assert_allclose(remedy.transform(3 * np.ones((5, 24))), 24**-0.5 * np.ones((5, 24)))


def test_groups_are_never_both_fitted_on_and_judged():
    from anisoscope.runs.work.collected import Part
    from anisoscope.studies.folds import split_folds

    groups = [f"document {k // 30}" for k in range(N)]
    remedy = Remedy("centre").partial_fit(CLOUD, groups=groups)
    split = split_folds(Part({"folds": remedy._sums["rows"]}))
    judged = set(split.held.keys.tolist())
    from anisoscope.accumulate.keys import sequence_keys

    rows_of_judged = np.isin(sequence_keys(groups), list(judged))
    assert split.n_fit + rows_of_judged.sum() == N
    np.testing.assert_allclose(split.fitted.mean, CLOUD[~rows_of_judged].mean(0), atol=1e-9)


def test_saved_and_loaded_it_is_the_same(tmp_path):
    remedy = Remedy("soft-zca").fit(CLOUD)
    again = Remedy.load(remedy.save(tmp_path / "remedy.safetensors"))
    np.testing.assert_array_equal(again.transform(CLOUD), remedy.transform(CLOUD))
    assert again.threshold(0.01) == remedy.threshold(0.01)
    assert again.method == "soft-zca"


def test_a_zero_vector_stays_zero_and_single_precision_stays_single():
    remedy = Remedy("centre").fit(CLOUD)
    mean = remedy.fitted().mean
    assert remedy.transform(mean[None]).tolist() == [[0.0] * D]
    assert remedy.transform(CLOUD.astype(np.float32)).dtype == np.float32


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("kind", [np.float32, np.float64])
@pytest.mark.parametrize("scale", [1e-25, 1e30])
def test_directions_are_those_of_exact_arithmetic_at_any_scale(method, kind, scale):
    x = CLOUD.astype(kind)
    remedy, shown = Remedy(method).fit(x), x * kind(scale)
    exact = remedy.fitted().apply(shown.astype(float) if scale > 1 else x.astype(float))  # without squares
    if scale < 1:
        remedy = Remedy(method).fit(shown)
    found = remedy.transform(shown)
    assert found.dtype == kind
    np.testing.assert_allclose(found, normalize(exact / np.abs(exact).max()), atol=2e-5)


def test_rows_that_are_odd_leave_the_others_as_they_are():
    remedy, x = Remedy("soft-zca").fit(CLOUD), CLOUD.astype(np.float32)
    plain = remedy.transform(x)
    x[3], x[5, 7], x[9, 2] = remedy.fitted().mean, np.nan, np.inf
    found = remedy.transform(x)
    assert not found[3].any()
    assert np.isnan(found[[5, 9]]).all()
    others = np.setdiff1d(np.arange(N), [3, 5, 9])
    np.testing.assert_array_equal(found[others], plain[others])


def test_a_loaded_remedy_does_not_forget_what_it_was_fitted_on(tmp_path):
    again = Remedy.load(Remedy("centre").fit(CLOUD).save(tmp_path / "remedy.safetensors"))
    with pytest.raises(UsageError, match="cannot learn more"):
        again.partial_fit(CLOUD)
    np.testing.assert_allclose(again.fit(CLOUD + 1).fitted().mean, CLOUD.mean(0) + 1)


def test_groups_are_one_for_each_row_and_none_is_missing():
    with pytest.raises(UsageError, match="one label per row"):
        Remedy("centre").fit(CLOUD, groups=range(N - 1))
    with pytest.raises(UsageError, match="missing group"):
        Remedy("centre").fit(CLOUD, groups=[None] * N)


@pytest.mark.parametrize(
    ("made", "given", "words"),
    [
        ({"sample": 3}, {"x": CLOUD}, "'sample' is wrong"),
        ({"seed": -1}, {"x": CLOUD}, "'seed' is wrong"),
        ({"dims": 1.5}, {"x": CLOUD}, "whole number"),
        ({}, {"x": CLOUD, "queries": CLOUD[:, :3]}, "queries of another dimension"),
        ({}, {"x": [[1.0, 2.0], [3.0]]}, "not a matrix"),
        ({}, {"x": CLOUD * 1e200}, "squares cannot be summed"),
    ],
)
def test_what_makes_no_remedy_is_refused_in_words(made, given, words):
    with pytest.raises((UsageError, InputError), match=words):
        Remedy("whiten", **made).fit(**given).fitted()


def test_a_refused_block_adds_nothing():
    remedy = Remedy("centre").partial_fit(CLOUD[:1])
    for bad in ({"x": CLOUD, "queries": CLOUD[:, :3]}, {"x": CLOUD[:, :3]}, {"x": CLOUD, "groups": ["a"]}):
        with pytest.raises(UsageError):
            remedy.partial_fit(**bad)
    remedy.partial_fit(CLOUD[1:])
    np.testing.assert_allclose(remedy.fitted().mean, CLOUD.mean(0), rtol=1e-12)
    assert remedy.about["rows"] == N


def test_tensors_are_arrays():
    half = torch.from_numpy(CLOUD).bfloat16().requires_grad_()
    remedy = Remedy("centre").fit(half)
    np.testing.assert_allclose(remedy.transform(half), remedy.transform(half.detach().float().numpy()))


@pytest.mark.parametrize("dims", [1, 13])
def test_dimensions_that_cannot_be_kept_are_refused(dims):
    with pytest.raises(UsageError, match="that many dimensions"):
        Remedy("whiten", dims=dims).fit(CLOUD).fitted()


def test_what_is_no_remedy_is_refused(tmp_path):
    with pytest.raises(UsageError, match="no such method"):
        Remedy("bleach")
    with pytest.raises(UsageError, match="not fitted"):
        Remedy("centre").transform(CLOUD)
    with pytest.raises(UsageError, match="another dimension"):
        Remedy("centre").fit(CLOUD).transform(CLOUD[:, :3])
    with pytest.raises(InputError, match="too few vectors, or too wide"):
        Remedy("centre").fit(CLOUD[:20]).fitted()
    (tmp_path / "x.safetensors").write_bytes(b"nothing")
    with pytest.raises(StoreError):
        Remedy.load(tmp_path / "x.safetensors")


def test_the_study_keeps_the_map_that_the_estimator_makes_and_shards_add_up(tmp_path):
    np.save(tmp_path / "x.npy", CLOUD)
    run = anisoscope.remedy(files=[str(tmp_path / "x.npy")], method="whiten", out=tmp_path / "whole")  # pyright: ignore
    kept, made = Remedy.load(tmp_path / "whole"), Remedy("whiten").fit(CLOUD)
    np.testing.assert_allclose(
        kept.transform(CLOUD) @ kept.transform(CLOUD).T, made.transform(CLOUD) @ made.transform(CLOUD).T, atol=1e-9
    )
    assert str(run.verdict).startswith("Whitening is not shown to help: the best match stands 2.6 sd above unrelated")
    assert "(1.5 before), not clearly more than random directions would give (" in str(run.verdict)
    assert len(str(run.verdict).split()) < 50
    many = rng.standard_normal((20_000, 4)) + 1.0  # three chunks, which is what workers share
    np.save(tmp_path / "many.npy", many)
    shards = [tmp_path / f"shard{k}" for k in range(2)]
    for k, out in enumerate(shards):
        anisoscope.remedy(files=[str(tmp_path / "many.npy")], method="whiten", shard=f"{k}/2", out=out)  # pyright: ignore
    anisoscope.merge(shards, tmp_path / "merged")
    np.testing.assert_allclose(Remedy.load(tmp_path / "merged").fitted().mean, many.mean(0), atol=1e-9)


def labelled_file(folder, *, noise: float) -> dict:
    """300 documents and a query for every second one; three dimensions are loud and say nothing."""
    import json

    draw = np.random.default_rng(3)
    documents = draw.standard_normal((300, 16))
    queries = documents[::2] + noise * draw.standard_normal((150, 16))
    x = np.concatenate([documents, queries])
    x[:, :3] = 12 * draw.standard_normal((450, 3))
    np.save(folder / "x.npy", x)
    lines = (json.dumps({"query": 300 + k, "document": 2 * k}) for k in range(150))
    (folder / "pairs.jsonl").write_text("\n".join(lines))
    return {"files": str(folder / "x.npy"), "pairs": str(folder / "pairs.jsonl")}


def test_with_pairs_the_best_is_what_search_gains_from_on_queries_that_did_not_choose_it(tmp_path):
    found = anisoscope.remedy(**labelled_file(tmp_path, noise=0.3))
    moved = {row.site: row for row in found.rows if row.metric == "ndcg_difference"}
    assert set(moved) == set(METHODS)
    assert "helps search: nDCG@10 changes by +" in str(found.verdict)
    assert all(row.n is not None and 40 < row.n < 110 for row in moved.values())  # the other half of 150 queries
    assert moved[str(found.protocol["method"])].low > 0


def test_with_pairs_that_nothing_helps_nothing_is_done(tmp_path):
    found = anisoscope.remedy(**labelled_file(tmp_path, noise=100.0))
    assert found.protocol["method"] == "none"
    assert "nothing is worth doing: no method improves nDCG@10" in str(found.verdict)


def test_pipelines_clones_and_grid_searches_of_scikit_learn_take_it() -> None:
    rng = np.random.default_rng(0)
    labels = rng.integers(2, size=400)
    x = rng.standard_normal((400, 8)) * np.geomspace(4, 0.2, 8) + 3.0
    x[:, 7] += labels
    piped = make_pipeline(Remedy("whiten"), LogisticRegression()).fit(x, labels)
    alone = Remedy("whiten").fit(x)
    np.testing.assert_allclose(piped[0].transform(x), alone.transform(x))  # labels are no groups
    assert piped.score(x, labels) > 0.6
    assert clone(alone).get_params() == {"method": "whiten", "dims": None, "seed": 0, "sample": 4096}
    assert clone(alone).map is None
    search = GridSearchCV(piped, {"remedy__dims": [2, 8], "remedy__method": ["whiten-k"]}, cv=2).fit(x, labels)
    assert search.best_params_["remedy__dims"] == 8


def test_what_is_masked_is_left_out_and_complex_numbers_are_refused():
    x = np.random.default_rng(0).standard_normal((300, 8)) + 1
    masked = np.ma.masked_array(np.vstack([x, np.full((1, 8), 1e6)]), mask=False)
    masked[-1, 0] = np.ma.masked
    plain, found = (Remedy("centre").fit(rows, groups=np.arange(len(rows))) for rows in (x, masked))
    np.testing.assert_allclose(found.transform(x), plain.transform(x), atol=1e-12)
    assert np.isnan(found.transform(masked)[-1]).all()
    with pytest.raises(UsageError, match="real numbers"):
        plain.transform(x + 1j)


def test_the_order_of_bytes_changes_nothing() -> None:
    x = np.random.default_rng(0).standard_normal((400, 5)) * 1e-3 + 500.0  # in float32 a tenth of the spread would go
    found, swapped = (Remedy("standardise").fit(one).transform(one) for one in (x, x.astype(">f8")))
    np.testing.assert_array_equal(found, swapped)
