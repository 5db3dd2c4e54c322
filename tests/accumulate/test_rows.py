"""Row statistics against brute force: every row by itself, in float64, on full matrices."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch

from anisoscope.accumulate.attention.rows import OF_LENGTHS, OF_ROWS, OF_SEQUENCES, Rows
from anisoscope.accumulate.attention.score_bins import BINS, count_cells, fold_cells, score_edges
from anisoscope.accumulate.keys import GROUPS, group_of
from anisoscope.capture.attention.call import AttentionCall
from anisoscope.errors import StoreError
from anisoscope.geometry.queries_keys import split_variance

KEYS = np.array([11, 22, 33], dtype=np.uint64)
D = 4
LEAST = torch.finfo(torch.float64).min


def _causal(t: int) -> np.ndarray:
    return np.tril(np.ones((t, t), dtype=bool))


def _visible(name: str, tq: int, tk: int) -> np.ndarray:
    """(3, tq, tk): who sees whom in each of three sequences; the second is shorter."""
    full = np.ones((3, tq, tk), dtype=bool)
    padded = full.copy()
    padded[1, :, tk - 3 :] = False
    if name == "full":
        return full
    if name == "padded":
        return padded
    if name == "causal":
        return full & _causal(tq)
    if name == "causal padded":
        return padded & _causal(tq)
    if name == "left padded":
        left = full & _causal(tq)
        left[1, :, :3] = False
        return left
    assert name == "sliding"
    return padded & _causal(tq) & ~np.tril(np.ones((tq, tk), dtype=bool), -4)


@dataclass
class Case:
    """A call on random vectors with drift, and what a loop over its rows finds."""

    call: AttentionCall
    visible: np.ndarray
    valid: np.ndarray

    def rows(self) -> list[tuple[int, int, int, np.ndarray, np.ndarray, np.ndarray]]:
        """(sequence, head, query, its vector, visible keys, their probabilities, in the order of the keys)."""
        q, k = self.call.score_queries.numpy(), self.call.score_keys.numpy()
        bias = np.zeros(1) if self.call.bias is None else self.call.bias.numpy()
        found = []
        for b, h, i in np.ndindex(q.shape[:3]):
            seen = np.flatnonzero(self.visible[b, i])
            if self.valid[b, i]:
                keys = k[b, h // self.call.group, seen]
                scores = keys @ q[b, h, i] * self.call.scaling
                added = scores + (bias[0, h, i, seen] if bias.ndim == 4 else 0.0)
                weights = np.exp(added - added.max())
                found.append((b, h, i, q[b, h, i], keys, weights / weights.sum()))
        return found


def _case(mask: str, *, tq: int = 9, tk: int = 9, heads: int = 4, key_heads: int = 2, bias: bool = False) -> Case:
    rng = np.random.default_rng([tq, tk, heads])
    visible = _visible(mask, tq, tk)
    valid_keys = visible.any(1)
    valid = valid_keys if tq == tk else np.ones((3, tq), dtype=bool)
    additive = torch.zeros(3, 1, tq, tk, dtype=torch.float64).masked_fill(~torch.from_numpy(visible)[:, None], LEAST)
    same = (visible == visible[:, :1]).all()
    seen = None if visible.all() else torch.from_numpy(visible[:, :1] if same else visible)
    query = torch.from_numpy(rng.normal(size=(3, heads, tq, D)) + rng.normal(size=(heads, 1, D)))
    key = torch.from_numpy(3 * rng.normal(size=(3, key_heads, tk, D)) + 5 * rng.normal(size=(key_heads, 1, D)))
    call = AttentionCall(
        queries=query,
        keys=key,
        kind="self",
        valid_queries=torch.from_numpy(valid),
        valid_keys=torch.from_numpy(valid_keys),
        visible=seen,
        scaling=0.3,
        score_queries=query,
        score_keys=key,
        mask=additive,
        bias=torch.from_numpy(rng.normal(size=(1, heads, tq, tk))) if bias else None,
        query_chunk=4,
        values=torch.from_numpy(rng.normal(size=(3, key_heads, tk, 5))),
    )
    return Case(call, visible, valid)


CASES = {
    "full": {"mask": "full"},
    "full, an even number of keys": {"mask": "full", "tq": 8, "tk": 8},
    "fewer keys than queries": {"mask": "full", "tq": 9, "tk": 5},
    "one head to each key head": {"mask": "padded", "key_heads": 4},
    "padded": {"mask": "padded"},
    "padded, with a position bias": {"mask": "padded", "bias": True},
    "causal": {"mask": "causal"},
    "causal, an even number of keys": {"mask": "causal", "tq": 8, "tk": 8},
    "causal padded": {"mask": "causal padded", "bias": True},
    "left padded": {"mask": "left padded"},
    "sliding": {"mask": "sliding", "key_heads": 1},
}


@pytest.fixture(params=CASES, ids=str)
def case(request: pytest.FixtureRequest) -> Case:
    return _case(**CASES[request.param])


def _accumulate(case: Case) -> Rows:
    rows = Rows.like(case.call)
    rows.update(case.call, KEYS)
    return rows


def _by_row(case: Case) -> dict[str, np.ndarray]:
    """Sums over the rows that see more than one key, (heads,), by a loop."""
    sums = {name: np.zeros(case.call.queries.shape[1]) for name in (*OF_ROWS, *OF_LENGTHS)}
    for b, h, i, q, keys, p in case.rows():
        if len(p) < 2:
            continue
        scores, seen = keys @ q * case.call.scaling, np.flatnonzero(case.visible[b, i])
        entropy = -np.sum(p * np.log(p))
        first = np.flatnonzero(case.visible[b].any(0))[0]
        row = {
            "entropy": entropy,
            "entropy_normalised": entropy / np.log(len(p)),
            "collapsed": entropy / np.log(len(p)) < 0.1,
            "one_key": p.max() > 0.99,
            "output": _own_cosine(case, b, h, i, p @ case.call.values[b, h // case.call.group].numpy()[seen]),
            "max": p.max(),
            "median": np.median(p),
            "min": p.min(),
            "sink": p[seen == first].sum(),
            "self": p[seen == i].sum() if case.call.queries.shape[2] == case.call.keys.shape[2] else 0.0,
            "score": scores.mean(),
            "score_square": np.mean(scores**2),
            "within": scores.var(),
            "log_visible": np.log(len(p)),
            "inverse_visible": 1 / len(p),
        }
        for name, value in row.items():
            sums[name][h] += value
    return sums


def _own_cosine(case: Case, b: int, h: int, i: int, output: np.ndarray) -> float:
    """Cosine of an output with the value of the query's own position, where there is one."""
    assert case.call.values is not None
    if case.call.queries.shape[2] != case.call.keys.shape[2]:
        return 0.0
    own = case.call.values[b, h // case.call.group, i].numpy()
    return float(output @ own / np.linalg.norm(output) / np.linalg.norm(own))


def test_sums_over_rows_equal_a_loop(case: Case) -> None:
    rows, expected = _accumulate(case), _by_row(case)
    for name in OF_ROWS:
        np.testing.assert_allclose(rows.sums[name].sum(0), expected[name], rtol=1e-10, atol=1e-10, err_msg=name)
    for name in OF_LENGTHS:
        np.testing.assert_allclose(rows.sums[name].sum(), expected[name][0], rtol=1e-12, err_msg=name)


def test_sums_over_sequences_equal_a_loop(case: Case) -> None:
    rows = _accumulate(case)
    expected = {name: np.zeros(case.call.queries.shape[1]) for name in OF_SEQUENCES}
    for b, h in np.ndindex(3, case.call.queries.shape[1]):
        here = [(i, p) for s, head, i, _, _, p in case.rows() if (s, head) == (b, h)]
        several = np.concatenate([p for _, p in here if len(p) > 1])
        first = np.flatnonzero(case.visible[b].any(0))[0]
        alpha = np.mean([p[np.flatnonzero(case.visible[b, i]) == first].sum() for i, p in here])
        expected["sequence_max"][h] += several.max()
        expected["sequence_min"][h] += several.min()
        expected["alpha"][h] += alpha
        expected["sinks"][h] += alpha > 0.3
    for name, values in expected.items():
        np.testing.assert_allclose(rows.sums[name].sum(0), values, rtol=1e-10, err_msg=name)


def test_rows_are_counted(case: Case) -> None:
    rows = _accumulate(case)
    seen = case.visible.sum(-1)[case.valid]
    assert rows.sums["rows"].sum() == (seen > 1).sum()
    assert rows.sums["one_key_rows"].sum() == (seen == 1).sum()
    assert rows.sums["sink_length"].sum() == case.valid.sum()
    np.testing.assert_array_equal(np.flatnonzero(rows.sums["sequences"]), np.unique(group_of(KEYS)))


def test_salience_and_content_equal_a_loop_that_knows_the_mean_query(case: Case) -> None:
    rows = _accumulate(case)
    for head in range(case.call.queries.shape[1]):
        mine = [(q, keys) for _, h, _, q, keys, p in case.rows() if h == head and len(p) > 1]
        mean = np.mean([q for q, _ in mine], axis=0)
        scaled = [(q, keys * case.call.scaling) for q, keys in mine]
        salience = np.mean([np.var(keys @ mean) for _, keys in scaled])
        content = np.mean([np.var(keys @ (q - mean)) for q, keys in scaled])
        total = np.mean([np.var(keys @ q) for q, keys in scaled])
        found = split_variance(
            rows.sums["within"].sum(0)[head].numpy(),
            rows.sums["spread"].sum(0)[head // case.call.group].numpy(),
            rows.sums["spread_query"].sum(0)[head].numpy(),
            rows.sums["query"].sum(0)[head].numpy(),
            len(mine),
        )
        expected = [total, salience, content, total - salience - content, salience / (salience + content)]
        np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-9)


def test_histogram_counts_each_visible_pair_once(case: Case) -> None:
    rows = _accumulate(case)
    edges = score_edges()
    for head in range(case.call.queries.shape[1]):
        scores = [keys @ q * case.call.scaling for _, h, _, q, keys, p in case.rows() if h == head and len(p) > 1]
        expected = np.histogram(np.concatenate(scores), bins=edges)[0]
        np.testing.assert_array_equal(rows.sums["histogram"][head].numpy(), expected)


def test_large_key_drift_leaves_the_split_alone() -> None:
    near, far = _case("causal"), _case("causal")
    far.call.score_keys = (near.call.score_keys + 1e4).float()
    far.call.score_queries = near.call.score_queries.float()
    far.call.mask = None
    for name in ("spread", "spread_query"):
        expected = _accumulate(near).sums[name].sum(0)
        np.testing.assert_allclose(_accumulate(far).sums[name].sum(0), expected, rtol=0.01, atol=0.01)


def test_windows_have_no_sinks() -> None:
    case = _case("full")
    rows = Rows.like(case.call)
    rows.update(case.call, KEYS[:1])  # three windows of one sequence
    assert rows.sums["sequences"].sum() == 3
    assert rows.sums["sink_sequences"].sum() == 0
    assert rows.sums["sink"].sum() == 0


def test_merging_equals_one_pass_and_survives_storage() -> None:
    cases = [_case("causal padded"), _case("causal padded", heads=4, tq=8, tk=8)]
    whole, first, second = (Rows.like(cases[0].call) for _ in range(3))
    for case, keys in zip(cases, (KEYS, KEYS + np.uint64(7)), strict=True):
        whole.update(case.call, keys)
    first.update(cases[0].call, KEYS)
    second.update(cases[1].call, KEYS + np.uint64(7))
    second = Rows.from_state(second.state())
    second.merge(first)
    for name, expected in whole.state().items():
        np.testing.assert_allclose(second.state()[name], expected, rtol=1e-12, atol=1e-12, err_msg=name)
    assert len(whole.sums["rows"].nonzero()) == len(np.unique(group_of(np.concatenate([KEYS, KEYS + np.uint64(7)]))))


def test_other_heads_do_not_merge() -> None:
    with pytest.raises(StoreError, match="other heads"):
        Rows(query_heads=4, key_heads=4, d=8).merge(Rows(query_heads=4, key_heads=2, d=8))


def test_score_bins_agree_with_numpy_everywhere() -> None:
    rng = np.random.default_rng(0)
    sizes = 10.0 ** rng.uniform(-6, 6, size=20_000) * rng.choice([-1, 1], size=20_000)
    scores = np.concatenate([sizes, [0.0, -0.0, np.inf, -np.inf, np.nan, 1.0, -1.0, 4096.0]]).astype(np.float32)
    counts = fold_cells(count_cells(torch.from_numpy(scores).view(1, 1, 1, -1)))[0].numpy()
    finite = np.clip(scores[~np.isnan(scores)], -1e30, 1e30)
    mirrored = np.histogram(-finite[finite < 0], bins=score_edges())[0][::-1]  # a bin holds its edge nearer to zero
    np.testing.assert_array_equal(counts, np.histogram(finite[finite >= 0], bins=score_edges())[0] + mirrored)
    assert len(counts) == BINS
    assert GROUPS % 8 == 0
