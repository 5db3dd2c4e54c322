"""The similarity floor against brute force, corrections judged on groups that they were not fitted on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import anisoscope
from anisoscope.accumulate.keys import GROUPS, group_of
from anisoscope.errors import InputError, StoreError, UsageError
from anisoscope.geometry import corrections
from anisoscope.inference.floor import HeldOut, measure_floor
from anisoscope.results import Result
from anisoscope.runs.table import Row
from anisoscope.studies.calibrate.advice import advice
from encoders import MINILM, sentence_folder

N, D = 600, 8


@pytest.fixture(scope="module")
def cloud() -> np.ndarray:
    rng = np.random.default_rng(0)
    return (rng.standard_normal((N, D)) * np.linspace(1, 3, D) + 4.0).astype(np.float32)


@pytest.fixture
def file(cloud: np.ndarray, tmp_path: Path) -> Path:
    np.save(tmp_path / "x.npy", cloud)
    return tmp_path / "x.npy"


def cosines(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return (a / np.linalg.norm(a, axis=1, keepdims=True)) @ (b / np.linalg.norm(b, axis=1, keepdims=True)).T


def folds(n: int = N) -> np.ndarray:
    """The fold of each numbered row, and that the first two of four are held out where rows are few."""
    return group_of(np.arange(n, dtype=np.uint64), groups=GROUPS) % 4


def values(found: Result) -> dict[tuple[str, str, float | None], Any]:
    return {(row.site, row.metric, row.at): row.value for row in found.rows}


def test_every_statistic_is_that_of_all_pairs_of_held_out_rows(cloud, file):
    found = anisoscope.calibrate(file, rate=[0.1, 0.01])
    held, others = cloud[folds() < 2].astype(float), cloud[folds() >= 2].astype(float)
    fitted = corrections.fit(others)
    upper = np.triu_indices(len(held), 1)
    value = values(found)
    raw_nearest = np.argsort(-(cosines(held, held) - 3 * np.eye(len(held))), axis=1)[:, :10]
    for name in corrections.NAMES:
        rows = fitted.apply(name, held)
        matrix = cosines(rows, rows)
        pairs = matrix[upper]
        assert value[name, "floor_mean", None] == pytest.approx(pairs.mean(), abs=1e-6)
        assert value[name, "floor_sd", None] == pytest.approx(pairs.std(), abs=1e-6)
        assert value[name, "floor_q75", None] == pytest.approx(np.quantile(pairs, 0.75), abs=1e-5)
        assert value[name, "threshold", 0.01] == pytest.approx(np.quantile(pairs, 0.99), abs=1e-5)
        best = (matrix - 3 * np.eye(len(held))).max(1).mean()
        assert value[name, "nearest_mean", None] == pytest.approx(best, abs=1e-6)
        assert value[name, "nearest_gap", None] == pytest.approx((best - pairs.mean()) / pairs.std(), abs=1e-4)
        if name != "raw":
            nearest = np.argsort(-(matrix - 3 * np.eye(len(held))), axis=1)[:, :10]
            kept = np.mean([len(set(a) & set(b)) / 10 for a, b in zip(nearest, raw_nearest, strict=True)])
            assert value[name, "neighbour_overlap", None] == pytest.approx(kept, abs=2e-3)
    share = (cosines(held, held)[upper] < 0.9).mean()
    assert value["raw", "floor_percentile", 0.9] == pytest.approx(share, abs=1e-9)


def test_a_correction_after_which_the_best_match_stands_out_less_is_warned_of():
    """Also where the threshold hides it, because the floor spreads as the correction lowers it."""

    def told(site: str, **metrics: tuple[float, float, float]) -> list[Row]:
        at = {"threshold": 0.01}
        return [
            Row(site=site, metric=name, at=at.get(name), value=value, low=low, high=high)
            for name, (value, low, high) in metrics.items()
        ]

    same = {"threshold": (0.75, 0.73, 0.77)}
    raw = told("raw", **same, floor_mean=(0.4, 0.3, 0.5), floor_sd=(0.2, 0.1, 0.3), nearest_gap=(2.1, 2.0, 2.2))
    after = {"nearest_gap": (1.7, 1.6, 1.8), "nearest_gap_difference": (-0.4, -0.5, -0.3)}
    said = "Beware: the best match stands out less with centring (1.7 instead of 2.1 sd above unrelated pairs)."
    assert advice([*raw, *told("centred", **same, **after)]).endswith(said)
    unsure = {**after, "nearest_gap_difference": (-0.4, -0.9, 0.1)}
    assert "Beware" not in advice([*raw, *told("centred", **same, **unsure)])


def test_rows_with_few_unrelated_ones_do_not_count_as_keeping_their_neighbours():
    rng = np.random.default_rng(0)
    rows, keys = rng.standard_normal((45, D)), np.repeat(np.array([1, 2], np.uint64), [40, 5])
    other = np.random.default_rng(1).standard_normal((45, D))
    found, _ = measure_floor(HeldOut(rows, keys), {"raw": lambda x: x, "other": lambda x: other}, rates=[0.1])
    kept = next(one for one in found["other"] if one.metric == "neighbour_overlap")
    nearest = [np.argsort(-cosines(x[40:], x[:40]), axis=1)[:, :10] for x in (rows, other)]
    assert kept.value == pytest.approx(np.mean([len(set(a) & set(b)) / 10 for a, b in zip(*nearest, strict=True)]))
    assert (kept.n, kept.null, kept.note) == (5, 0.25, "40 rows with ten unrelated ones or fewer left out")
    few = np.repeat(np.array([1, 2], np.uint64), 5)
    none, _ = measure_floor(HeldOut(rows[:10], few), {"raw": lambda x: x, "other": lambda x: -x}, rates=[0.1])
    assert next(one for one in none["other"] if one.metric == "neighbour_overlap").value is None


def test_intervals_are_those_of_leaving_every_group_out(cloud, file):
    from anisoscope.inference.jackknife import jackknife

    found = anisoscope.calibrate(file, rate=[0.05])
    held = cloud[folds() < 2].astype(float)
    group = group_of(np.flatnonzero(folds() < 2).astype(np.uint64), groups=GROUPS)

    def threshold(rows: np.ndarray) -> float:
        return float(np.quantile(cosines(rows, rows)[np.triu_indices(len(rows), 1)], 0.95))

    sizes = np.bincount(group, minlength=GROUPS)
    left = np.array([threshold(held[group != g]) if sizes[g] else np.nan for g in range(GROUPS)])
    low, high = jackknife(left, threshold(held), sizes)
    row = next(row for row in found.rows if (row.site, row.metric) == ("raw", "threshold"))
    assert (row.low, row.high) == (pytest.approx(low, abs=1e-6), pytest.approx(high, abs=1e-6))


def test_centring_brings_a_high_floor_down(file):
    found = anisoscope.calibrate(file)
    floor = {row.site: row for row in found.rows if row.metric == "floor_mean"}
    assert floor["raw"].value > 0.7
    for name in ("centred", "without_top", "whitened"):
        assert abs(floor[name].value) < 0.03
    assert str(found.verdict).startswith("Unrelated pairs have cosine 0.")
    assert "only labelled pairs (--pairs) can tell" in str(found.verdict)


def test_pairs_within_a_group_are_left_out(cloud, tmp_path):
    np.savez(tmp_path / "x.npz", x=np.repeat(cloud, 2, 0), document=np.repeat(np.arange(N), 2))
    grouped = anisoscope.calibrate(tmp_path / "x.npz", column="x", group="document")
    assert values(grouped)["raw", "nearest_mean", None] < 0.9999
    assert "of different groups" in str(grouped.protocol)


def test_queries_are_paired_with_documents(cloud, file, tmp_path):
    queries = np.random.default_rng(1).standard_normal((40, D)).astype(np.float32)
    np.save(tmp_path / "q.npy", queries)
    found = anisoscope.calibrate(file, queries=tmp_path / "q.npy")
    expected = cosines(queries.astype(float), cloud[folds() < 2].astype(float))
    assert values(found)["raw", "floor_mean", None] == pytest.approx(expected.mean(), abs=1e-6)
    assert next(row for row in found.rows if row.metric == "floor_mean").n == expected.size


def test_an_array_is_calibrated_like_its_file(cloud, file):
    assert values(anisoscope.calibrate(cloud)) == values(anisoscope.calibrate(file))


def test_other_queries_are_other_data(file, tmp_path):
    path = tmp_path / "q.npy"
    np.save(path, np.random.default_rng(1).standard_normal((40, D)))
    anisoscope.calibrate(file, queries=path, out=tmp_path / "run")
    np.save(path, np.random.default_rng(2).standard_normal((40, D)))
    with pytest.raises(StoreError, match="changed since"):
        anisoscope.calibrate(file, queries=path, out=tmp_path / "run")


def test_what_cannot_be_calibrated_is_refused(cloud, file, tmp_path):
    with pytest.raises(InputError, match="too few vectors, or too wide"):
        anisoscope.calibrate(cloud[:63])
    with pytest.raises(UsageError, match="different dimensions"):
        anisoscope.calibrate(file, queries=np.ones((5, D + 1)))
    with pytest.raises(UsageError, match="rate"):
        anisoscope.calibrate(file, rate=[0.0])
    with pytest.raises(InputError, match="too few groups"):
        anisoscope.calibrate(cloud, groups=["one"] * N)
    with pytest.raises(InputError, match="no usable query"):
        anisoscope.calibrate(file, queries=np.zeros((4, D)))


@pytest.mark.parametrize(
    ("study", "option"),
    [
        ("calibrate", {"limit": 7}),
        ("calibrate", {"data": ["a text"]}),
        ("calibrate", {"prompt": "query: "}),
        ("advise", {"documents": "lines"}),
        ("advise", {"tokenizer": "bytes"}),
        ("remedy", {"pool": "mean"}),
    ],
)
def test_what_only_a_model_can_be_asked_is_refused_of_vectors(study, option, file):
    with pytest.raises(UsageError, match=f"for a model[\\s\\S]*--{next(iter(option))}"):
        getattr(anisoscope, study)(file, **option)


def test_what_only_vectors_can_be_asked_is_refused_of_a_model(tmp_path):
    folder = sentence_folder(tmp_path / "model", pooling="mean", length=32)
    with pytest.raises(UsageError, match=r"for vectors[\s\S]*--group"):
        anisoscope.calibrate(folder, group="author")


def test_labels_in_memory_are_groups_in_words_too(cloud):
    found = anisoscope.calibrate(cloud, groups=(np.arange(len(cloud)) // 2).tolist())
    assert "of different groups" in str(found.protocol)


def test_what_was_left_out_is_said(cloud):
    broken = cloud.copy()
    broken[:3], broken[3] = 0, np.nan
    assert {"3 zero vectors left out", "1 vector with NaN or infinite entries left out"} <= set(
        anisoscope.calibrate(broken).notes
    )


def test_a_model_reads_the_sentences_of_the_package_by_topic(tmp_path):
    folder = sentence_folder(tmp_path / "model", pooling="mean", length=32)
    found = anisoscope.calibrate(str(folder))
    assert found.data["name"] == "embedded sentences"
    assert "of different groups" in str(found.protocol)
    n = next(row for row in found.rows if row.metric == "floor_mean").n
    m = next(row for row in found.rows if row.metric == "nearest_mean").n
    assert 0 < n < m * (m - 1) / 2  # two of one topic are no pair
    assert "duplicated vectors left out of those held out" in " ".join(found.notes)  # most words are unknown to it
    with pytest.raises(UsageError, match="queries are texts"):
        anisoscope.calibrate(str(folder), queries=np.ones((3, 16)))


@pytest.mark.skipif(not MINILM.is_dir(), reason="scripts/fetch_real_weights.py /tmp/weights minilm")
def test_real_minilm_against_its_library():
    from sentence_transformers import SentenceTransformer

    from anisoscope.inputs.sentences import sentences, topic_of

    found = anisoscope.calibrate(str(MINILM))
    documents = list(sentences())
    x = SentenceTransformer(str(MINILM), device="cpu").encode([one.text for one in documents]).astype(float)
    topics = np.array([topic_of(one.key) for one in documents])
    floor = cosines(x, x)[topics[:, None] != topics[None, :]].mean()
    row = next(row for row in found.rows if (row.site, row.metric) == ("raw", "floor_mean"))
    assert row.value == pytest.approx(floor, abs=0.03)  # half of the topics


def test_the_three_lines_of_numpy_run(file, capsys):
    from anisoscope.studies.calibrate.advice import story

    found = anisoscope.calibrate(file)
    lines = [cells[0] for cells in story(found.rows).more[-1].cells]
    there = {"np": np, "cosine": 0.9}
    exec("\n".join(map(str, lines)), there)
    assert there["percentile"] == pytest.approx(100 * values(found)["raw", "floor_percentile", 0.9], abs=0.05)


def test_a_floor_of_nothing_has_no_sign() -> None:
    found = anisoscope.calibrate(np.random.default_rng(0).standard_normal((300, D)).astype(np.float32))
    floor = values(found)["raw", "floor_mean", None]
    assert -0.005 < floor < 0
    assert "cosine 0.00 on average" in found._repr_html_()


def correction(site: str, threshold: float, gain: float | None = None) -> list[Row]:
    """A correction with its threshold at 1 % and, with labelled pairs, what it gains in search."""
    found = [Row(site=site, metric="threshold", at=0.01, value=threshold, low=threshold - 0.01, high=threshold + 0.01)]
    if gain is not None:
        found += [Row(site=site, metric="ndcg_difference", value=gain, low=gain - 0.01, high=gain + 0.01)]
    return [*found, Row(site=site, metric="neighbour_overlap", value=0.5)]


RAW = [
    *(Row(site="raw", metric="floor_mean", value=0.4), Row(site="raw", metric="floor_sd", value=0.1)),
    *(Row(site="raw", metric="ndcg", value=0.6), *correction("raw", 0.73)[:1]),
]


def test_the_advice_is_what_lowered_the_threshold_most_and_warns_of_what_raised_it() -> None:
    said = advice([*RAW, *correction("centred", 0.79), *correction("without_top", 0.5), *correction("whitened", 0.32)])
    assert "Whitening lowers it most, to 0.32, and keeps 50 % of the ten nearest neighbours" in said
    assert said.endswith("Beware: it rises with centring (0.79).")
    near = advice([*RAW, *correction("without_top", 0.33), *correction("whitened", 0.32)])
    assert "Whitening lowers it to 0.32 (centring and removing the top components, to 0.33, is not clearly" in near
    assert "most" not in near
    within = advice([*RAW, *correction("centred", 0.72)])
    assert "No correction lowers the threshold by more than its interval." in within
    assert "Beware" not in within


def test_with_labelled_pairs_the_gain_in_search_decides_whatever_the_threshold_does() -> None:
    said = advice([*RAW, *correction("centred", 0.72, gain=0.05), *correction("whitened", 0.32, gain=-0.2)])
    assert "nDCG@10 is 0.600 as it is. Centring helps most: +0.050" in said
    assert said.endswith("Beware: whitening costs 0.200.")
    assert "nothing is worth doing" in advice([*RAW, *correction("whitened", 0.32, gain=0.005)])


def test_copies_are_neither_unrelated_pairs_nor_best_matches():
    x = np.random.default_rng(5).standard_normal((600, 24)) + 0.5
    both = np.concatenate([x, x[:300]])
    found = anisoscope.calibrate(both, rate=[0.001])
    (note,) = [note for note in found.notes if "duplicated" in note]
    assert int(note.split()[0]) > 5
    row = {(one.site, one.metric): one for one in found.rows if one.at in (None, 0.001)}
    assert row["raw", "threshold"].value < 0.95
    assert row["raw", "nearest_mean"].value == pytest.approx(
        next(one.value for one in anisoscope.calibrate(x).rows if one.metric == "nearest_mean"), abs=0.03
    )
    assert not [note for note in anisoscope.calibrate(x).notes if "duplicated" in note]
