"""The numbers of one attention call against plain loops."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from anisoscope.capture.attention.call import AttentionCall
from anisoscope.studies.block.attention import FirstAttention, attention_numbers

B, H, T, D_HEAD = 2, 3, 24, 8


def call(*, causal: bool, shift: float = 0.0, key_heads: int = H) -> AttentionCall:
    generator = torch.Generator().manual_seed(1)
    queries = torch.randn(B, H, T, D_HEAD, generator=generator) + shift
    keys = torch.randn(B, key_heads, T, D_HEAD, generator=generator) + shift
    visible = torch.ones(1, T, T).tril().bool() if causal else None
    mask = (
        None if visible is None else torch.zeros(1, 1, T, T).masked_fill(~visible[None], torch.finfo(torch.float32).min)
    )
    everything = torch.ones(B, T, dtype=torch.bool)
    return AttentionCall(
        queries=queries,
        keys=keys,
        kind="self",
        valid_queries=everything,
        valid_keys=everything,
        visible=visible,
        scaling=D_HEAD**-0.5,
        score_queries=queries,
        score_keys=keys,
        mask=mask,
        query_chunk=10,  # does not divide T: the last tile is shorter
    )


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("shift", "key_heads"), [(0.0, H), (2.0, H), (0.0, 1)])
def test_numbers_equal_plain_loops(causal: bool, shift: float, key_heads: int) -> None:
    seen = call(causal=causal, shift=shift, key_heads=key_heads)
    queries, keys = seen.queries.double().numpy(), seen.keys.double().numpy()
    rows, entropies, pool, within, uniform = [], [], [], [], []
    by_head: list[list[float]] = [[] for _ in range(H)]
    extremes = [[0.0, 1.0] for _ in range(B)]
    for b in range(B):
        for h in range(H):
            for i in range(T):
                count = i + 1 if causal else T
                row = keys[b, h * key_heads // H, :count] @ queries[b, h, i] / np.sqrt(D_HEAD)
                pool += list(row)
                by_head[h] += list(row)
                within += list((row - row.mean()) ** 2)
                if causal and i < T // 2:
                    continue
                p = np.exp(row - row.max())
                p /= p.sum()
                rows.append((p.max(), np.median(p), p.min()))
                entropies.append(-(p * np.log(p)).sum() / np.log(count))
                uniform.append(1 / count)
                extremes[b] = [max(extremes[b][0], p.max()), min(extremes[b][1], p.min())]
    numbers = attention_numbers(seen)
    expected = dict(zip(("max_probability", "median_probability", "min_probability"), np.mean(rows, 0), strict=True))
    expected |= {"entropy_normalised": np.mean(entropies)}
    expected |= {"sequence_max_probability": np.mean([e[0] for e in extremes])}
    expected |= {"sequence_min_probability": np.mean([e[1] for e in extremes])}
    assert numbers.softmax == pytest.approx(expected, rel=1e-4)
    moments = {"mean_score": np.mean(pool), "score_std": np.std(pool), "score_row_std": np.sqrt(np.mean(within))}
    assert numbers.scores == pytest.approx(moments, rel=1e-12, abs=1e-12)
    np.testing.assert_allclose(numbers.by_head, [np.mean(scores) for scores in by_head], atol=1e-12)
    assert numbers.uniform == pytest.approx(np.mean(uniform))


def test_the_histogram_counts_every_eighth_query_position() -> None:
    numbers = attention_numbers(call(causal=True))
    assert numbers.counts.sum() == B * H * (1 + 9 + 17)
    assert len(numbers.edges) == len(numbers.counts) + 1


def test_heads_are_concatenated_in_order() -> None:
    seen, watcher = call(causal=False), FirstAttention()
    watcher("block.0", seen)
    assert watcher.vectors["query"].shape == (B, T, H * D_HEAD)
    torch.testing.assert_close(watcher.vectors["query"][1, 5, D_HEAD : 2 * D_HEAD], seen.queries[1, 1, 5])


def test_only_the_first_layer_counts_until_begun_again() -> None:
    watcher = FirstAttention()
    watcher("block.0", call(causal=False))
    first = watcher.numbers
    watcher("block.1", call(causal=True))
    assert watcher.numbers is first
    watcher.begin()
    watcher("block.0", call(causal=True))
    assert watcher.numbers is not first
