"""The moments of a cloud against brute force in float64, and what they refuse."""

from __future__ import annotations

import math
import tracemalloc
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from anisoscope.accumulate.moments import LARGEST_SPECTRUM, Moments
from anisoscope.errors import InputError, UsageError
from anisoscope.geometry import cosine, drift, spectrum
from anisoscope.inference.cloud import measure_cloud

N, D = 20_000, 768


def clouds() -> Iterator[tuple[str, np.ndarray]]:
    rng = np.random.default_rng(0)
    base = rng.standard_normal((N, D), dtype=np.float32)
    direction = rng.standard_normal(D)
    direction /= np.linalg.norm(direction)
    yield "isotropic", base
    yield "drift with cosine 0.99", base + np.float32(math.sqrt(99 * D)) * direction.astype(np.float32)
    outliers = base.copy()
    outliers[:, [7, 300]] += 3000
    yield "two outlier dimensions around 3,000", outliers
    spread = base.copy()
    spread[:, [7, 300]] *= 3000
    yield "two outlier dimensions of sd 3,000", spread
    yield "drift of norm 10,000", base + np.float32(1e4) * direction.astype(np.float32)


def brute_force(x: np.ndarray) -> tuple[float, float]:
    """The average over all pairs, every cosine formed, and IsoScore as (PR − 1)/(d − 1); float64."""
    wide = x.astype(np.float64)
    units = wide / np.linalg.norm(wide, axis=1, keepdims=True)
    total = math.fsum(float((units[i : i + 2000] @ units.sum(0)).sum()) for i in range(0, N, 2000))
    wide -= wide.mean(0)
    covariance = wide.T @ wide / (N - 1)
    ratio = np.trace(covariance) ** 2 / np.square(covariance).sum()  # (Σλ)²/Σλ², without eigenvalues
    return (total - N) / (N * (N - 1)), float((ratio - 1) / (D - 1))


def test_one_pass_equals_float64_brute_force_on_hard_clouds() -> None:
    for name, x in clouds():
        moments = Moments(D)
        for start in range(0, N, 3000):
            moments.update(torch.from_numpy(x[start : start + 3000]))
        sums = moments.sums()
        values = spectrum.eigenvalues(spectrum.covariance(sums.second, sums.sum_x, sums.n))  # pyright: ignore
        expected_cosine, expected_isoscore = brute_force(x)
        assert cosine.mean_cosine(sums.sum_unit, sums.n) == pytest.approx(expected_cosine, rel=0, abs=1e-12), name
        assert spectrum.isoscore(values) == pytest.approx(expected_isoscore, rel=0, abs=1e-8), name


def test_the_average_cosine_of_all_pairs_is_the_average_of_all_pairs() -> None:
    """Pair by pair, in Python: what `brute_force` above abbreviates."""
    x = np.random.default_rng(1).standard_normal((40, 5)) + 0.5
    sequence = np.repeat(np.arange(8), 5)
    within, between = [], []
    for i in range(40):
        for j in range(i):
            c = float(x[i] @ x[j] / np.linalg.norm(x[i]) / np.linalg.norm(x[j]))
            (within if sequence[i] == sequence[j] else between).append(c)
    moments = Moments(5)
    moments.update(torch.from_numpy(x), sequences=sequence.astype(np.uint64))
    s = moments.sums()
    assert cosine.mean_cosine(s.sum_unit, s.n) == pytest.approx(np.mean(within + between), abs=1e-14)
    assert cosine.mean_cosine_inter(s.sum_unit, s.n, s.energy, s.pairs) == pytest.approx(np.mean(between), abs=1e-14)
    assert cosine.mean_cosine_intra(s.energy, s.n, s.pairs) == pytest.approx(np.mean(within), abs=1e-14)
    assert s.sequences == 8


def test_first_positions_are_kept_apart() -> None:
    rng = np.random.default_rng(2)
    x, keys = rng.standard_normal((60, 4)), np.repeat(np.arange(12), 5).astype(np.uint64)
    first = np.arange(60) % 5 == 0
    moments = Moments(4)
    moments.update(torch.from_numpy(x), sequences=keys, first=first)
    for positions, chosen in (("all", np.ones(60, bool)), ("rest", ~first), ("first", first)):
        alone = Moments(4)
        alone.update(torch.from_numpy(x[chosen]), sequences=keys[chosen])
        got, expected = moments.sums(positions), alone.sums()
        for name in vars(expected):
            if name.startswith(("group_", "sum_", "second")):
                np.testing.assert_allclose(getattr(got, name), getattr(expected, name), atol=1e-12, err_msg=name)
        assert (got.n, got.sequences) == (expected.n, expected.sequences)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_vectors_are_left_as_they_were_given(dtype: torch.dtype) -> None:
    x = torch.randn(700, 6, generator=torch.Generator().manual_seed(0)).to(dtype)
    before = x.clone()
    moments = Moments(6)
    moments.update(x, first=np.arange(700) % 7 == 0)
    assert torch.equal(x, before)
    wide = x.double().numpy()
    np.testing.assert_allclose(moments.sums().second, wide.T @ wide, rtol=1e-5, atol=1e-3)
    np.testing.assert_allclose(moments.sums().sum_x, wide.sum(0), rtol=1e-12, atol=1e-9)


@pytest.mark.parametrize("scale", [1e-42, 1e-25, 1e25, 1e36])
def test_the_spectrum_does_not_depend_on_the_scale(scale: float) -> None:
    x = (np.random.default_rng(3).standard_normal((500, 4)) * [1, 2, 3, 4] * scale).astype(np.float32)
    moments = Moments(4)
    moments.update(torch.from_numpy(x))
    s = moments.sums()
    got = spectrum.isoscore(spectrum.eigenvalues(spectrum.covariance(s.second, s.sum_x, s.n)))  # pyright: ignore
    expected = spectrum.isoscore(spectrum.eigenvalues(np.cov(x.astype(float) / scale, rowvar=False)))
    assert got == pytest.approx(expected, abs=1e-9)


def test_vectors_without_direction_are_counted_and_left_out() -> None:
    good = torch.randn(50, 3, generator=torch.Generator().manual_seed(0))
    bad = torch.tensor([[0.0, 0, 0], [math.nan, 1, 1], [math.inf, 0, 0], [-math.inf, math.inf, 0]])
    mixed = torch.cat([bad[:2], good[:20], bad[2:], good[20:]])
    first = np.zeros(54, bool)
    first[[0, 1, 22]] = True
    with_bad, without = Moments(3), Moments(3)
    keys = np.concatenate([[1, 1], np.full(20, 2), [3, 3], np.full(30, 4)]).astype(np.uint64)
    with_bad.update(mixed, sequences=keys, first=first)
    without.update(good, sequences=np.repeat([2, 4], [20, 30]).astype(np.uint64))
    got, expected = with_bad.sums(), without.sums()
    assert (got.n, got.zero, got.nonfinite, got.sequences) == (50, 1, 3, 2)
    assert (with_bad.sums("first").nonfinite, with_bad.sums("rest").nonfinite) == (2, 1)
    np.testing.assert_array_equal(got.sum_unit, expected.sum_unit)
    np.testing.assert_allclose(got.second, expected.second, rtol=1e-6)
    assert len(with_bad.reservoir.sample()) == 50


def test_places_in_a_sequence_do_not_depend_on_where_a_chunk_ends() -> None:
    """Default positions count every arrival, also of vectors that are left out."""
    x = torch.randn(40, 2, generator=torch.Generator().manual_seed(1))
    x[[3, 4, 17, 30]] = math.nan
    keys = np.repeat([5, 6], 20).astype(np.uint64)
    whole, pieces = Moments(2), Moments(2)
    whole.update(x, sequences=keys)
    for start in range(0, 40, 4):
        pieces.update(x[start : start + 4], sequences=keys[start : start + 4])
    a, b = whole.reservoir.sample(), pieces.reservoir.sample()
    assert np.array_equal(a.positions, b.positions)
    assert np.array_equal(a.x, b.x)
    assert sorted(a.positions[a.keys == 5].tolist()) == [p for p in range(20) if p not in (3, 4, 17)]


def test_a_sequence_that_comes_back_after_closing_is_refused_and_adds_nothing() -> None:
    moments = Moments(2)
    moments._sequences.limit = 3
    for key in range(5):
        moments.update(torch.ones(2, 2), sequences=np.full(2, key, dtype=np.uint64))
    before = moments.state()
    with pytest.raises(InputError, match="already closed"):
        moments.update(torch.ones(2, 2), sequences=np.array([4, 0], dtype=np.uint64))
    assert all(np.array_equal(before[name], array) for name, array in moments.state().items())
    moments.update(torch.ones(1, 2), sequences=np.array([4], dtype=np.uint64))  # still open
    assert (moments.sums().n, moments.sums().sequences) == (11, 5)


def test_merging_refuses_a_sequence_that_was_closed_elsewhere() -> None:
    def shard(*, close: bool) -> Moments:
        moments = Moments(2)
        moments.update(torch.ones(3, 2), sequences=np.full(3, 9, dtype=np.uint64), whole=close)
        return moments

    for left, right in ((True, False), (False, True), (True, True)):
        with pytest.raises(InputError, match="too far apart"):
            shard(close=left).merge(shard(close=right))
    both = shard(close=False)
    both.merge(shard(close=False))
    assert (both.sums().n, both.sums().sequences, both.sums().pairs) == (6, 1, 36)


@pytest.mark.parametrize(
    "other", [{"d": 3}, {"groups": 8}, {"spectrum": False}, {"seed": 1}, {"reservoir": 16}], ids=lambda o: next(iter(o))
)
def test_moments_of_different_kinds_do_not_merge(other: dict[str, int]) -> None:
    with pytest.raises(UsageError, match="different kinds"):
        Moments(2).merge(Moments(**({"d": 2} | other)))


def test_numbered_rows_of_two_shards_do_not_merge() -> None:
    """Both would hold a row 0, and the reservoir would take them for one."""
    a, b = Moments(2), Moments(2)
    a.update(torch.ones(3, 2))
    b.update(torch.ones(3, 2))
    with pytest.raises(UsageError, match="counted twice"):
        a.merge(b)


def test_numbered_rows_of_shards_merge_as_if_they_had_come_together() -> None:
    x = torch.randn(300, 4, generator=torch.Generator().manual_seed(0))
    together = Moments(4, reservoir=32)
    together.update(x)
    shards = [Moments(4, reservoir=32) for _ in range(3)]
    for start in range(0, 300, 20):  # blocks go round the shards
        shards[start // 20 % 3].update(x[start : start + 20], start=start)
    for shard in (shards[2], shards[0]):
        shards[1].merge(Moments.from_state(shard.state()))
    got, expected = shards[1].sums(), together.sums()
    np.testing.assert_allclose(got.group_unit, expected.group_unit, atol=1e-12)
    np.testing.assert_array_equal(got.group_n, expected.group_n)
    np.testing.assert_array_equal(shards[1].reservoir.sample().keys, together.reservoir.sample().keys)
    with pytest.raises(UsageError, match="rows 280 to 299"):
        shards[1].update(x[280:], start=280)
    shards[1].update(x[:2])  # numbered on from the highest
    assert shards[1].sums().n == 302


def test_sealed_moments_hold_no_open_sequence_and_the_same_numbers() -> None:
    x = torch.randn(60, 3, generator=torch.Generator().manual_seed(0))
    keys = np.repeat(np.arange(6), 10).astype(np.uint64)
    moments = Moments(3)
    moments.update(x, sequences=keys, first=np.arange(60) % 10 == 0)
    before = {part: moments.sums(part) for part in ("all", "rest", "first")}
    assert len(moments.state()["open.keys"]) == 6
    moments.seal()
    assert len(moments.state()["open.keys"]) == 0
    assert moments.state()["open.sums"].size == 0
    for part, expected in before.items():
        for name in ("group_energy", "group_pairs", "group_sequences"):
            np.testing.assert_array_equal(getattr(moments.sums(part), name), getattr(expected, name))
    with pytest.raises(InputError, match="already closed"):
        moments.update(x[:1], sequences=keys[:1])


def test_sealed_shards_of_whole_sequences_merge_to_the_numbers_of_one() -> None:
    x = torch.randn(400, 3, generator=torch.Generator().manual_seed(0)).double()
    keys = np.repeat(np.arange(40), 10).astype(np.uint64)
    one, shards = Moments(3), [Moments(3), Moments(3)]
    one.update(x, sequences=keys)
    for row in range(0, 400, 5):  # half a sequence at a time
        rows = slice(row, row + 5)
        shards[int(keys[row]) % 2].update(x[rows], sequences=keys[rows])
    for shard in shards:
        shard.seal()
    shards[0].merge(shards[1])
    np.testing.assert_allclose(shards[0].sums().group_energy, one.sums().group_energy, rtol=1e-12)
    assert shards[0].sums().sequences == 40
    with pytest.raises(InputError, match="too far apart"):
        shards[0].merge(shards[1])  # the same shard a second time


@pytest.mark.parametrize("whole", [True, False])
def test_memory_is_constant_in_the_number_of_sequences(whole: bool) -> None:
    """10⁵ sequences of two vectors: the state has one size, and the process holds no more at the end than early on."""
    d, chunk, count = 8, 500, 100_000
    moments = Moments(d, reservoir=64, open_bytes=2**15)
    x = torch.randn(2 * chunk, d)
    sizes, held = [], []
    tracemalloc.start()
    for start in range(0, count, chunk):
        keys = np.repeat(np.arange(start, start + chunk), 2).astype(np.uint64)
        moments.update(x, sequences=keys, whole=whole)
        if (start + chunk) % (count // 5) == 0:
            sizes.append(sum(array.nbytes for array in moments.state().values()))
            held.append(tracemalloc.get_traced_memory()[0])
    tracemalloc.stop()
    assert moments.sums().sequences == count
    assert len(set(sizes)) == 1
    assert max(held) < held[1] + 2**16  # a table of 16,384 keys is resized once more after the first fifth
    moments.seal()
    assert sum(array.nbytes for array in moments.state().values()) < 2**18


@pytest.mark.parametrize("scale", [1e-310, 1e-200, 1e200, 1e300])
def test_float64_vectors_of_any_scale_have_directions_and_no_wrong_square(scale: float) -> None:
    x = np.random.default_rng(3).standard_normal((400, 4)) + 0.5
    plain, scaled = Moments(4), Moments(4)
    plain.update(torch.from_numpy(x))
    scaled.update(torch.from_numpy(x * scale))
    got, expected = scaled.sums(), plain.sums()
    assert (got.n, got.zero, got.nonfinite) == (400, 0, 0)
    np.testing.assert_allclose(got.sum_unit, expected.sum_unit, rtol=1e-9)
    np.testing.assert_allclose(got.sum_norm / scale, expected.sum_norm, rtol=1e-9)
    assert drift.drift_norm(got.sum_x, got.n) / scale == pytest.approx(drift.drift_norm(expected.sum_x, 400), rel=1e-9)
    assert (got.squares, got.second) == (False, None)
    assert drift.drift_ratio(got.sum_x, got.sum_norm2, got.n) is None
    assert drift.norm_cv(got.sum_norm, got.sum_norm2, got.n) is None
    assert (len(scaled.reservoir.sample()), scaled.reservoir.unfit) == (0, 400)


def test_measuring_vectors_of_an_extreme_scale_says_what_is_missing() -> None:
    x = np.random.default_rng(3).standard_normal((400, 4)) + 0.5
    clouds = {}
    for scale in (1.0, 1e200):
        moments = Moments(4)
        moments.update(torch.from_numpy(x * scale))
        clouds[scale] = measure_cloud(Moments.from_state(moments.state()))
    plain, huge = ({e.metric: e for e in c.estimates["all"] if e.at is None} for c in clouds.values())
    for name, e in huge.items():
        factor = 1e200 if name in ("mean_norm", "drift_norm") else 1.0
        for got, expected in ((e.value, plain[name].value), (e.low, plain[name].low), (e.high, plain[name].high)):
            assert got is None or got / factor == pytest.approx(expected, rel=1e-9), name
    assert huge["mean_cosine"].value == pytest.approx(plain["mean_cosine"].value)
    assert "isoscore" not in huge
    assert [note.split()[0] for note in clouds[1e200].notes] == ["norms", "400"]


def test_shapes_are_checked() -> None:
    moments = Moments(3)
    for x in (torch.ones(3), torch.ones(2, 4), torch.ones(1, 2, 3)):
        with pytest.raises(UsageError, match="wrong shape"):
            moments.update(x)
    with pytest.raises(UsageError, match="one label"):
        moments.update(torch.ones(2, 3), sequences=np.zeros(3, dtype=np.uint64))
    with pytest.raises(UsageError, match="one dimension"):
        Moments(0)


def test_a_large_dimension_builds_no_square_matrix() -> None:
    moments = Moments(LARGEST_SPECTRUM + 1)
    moments.update(torch.ones(2, LARGEST_SPECTRUM + 1))
    assert moments.sums().second is None
    assert max(array.size for array in moments.state().values()) < 600 * LARGEST_SPECTRUM  # the sketch


def test_memory_does_not_grow_with_the_number_of_vectors() -> None:
    moments = Moments(8, reservoir=64)
    sizes = []
    for _ in range(6):
        moments.update(torch.randn(2000, 8))
        sizes.append(sum(array.size for array in moments.state().values()))
    assert len(set(sizes)) == 1


def test_empty_updates_change_nothing() -> None:
    moments = Moments(3)
    moments.update(torch.ones(0, 3))
    assert moments.sums().n == 0
    assert drift.mean_norm(moments.sums().sum_norm, moments.sums().n) is None
    assert cosine.mean_cosine(moments.sums().sum_unit, 0) is None


@pytest.mark.parametrize("exponent", [-160, -100, -82, -81, -64, -20, 0, 30, 64, 76, 100, 160])
def test_a_kurtosis_is_right_or_missing_at_any_scale(exponent: int) -> None:
    x = np.random.default_rng(0).standard_normal((200, 8))
    moments = Moments(8, spectrum=False)
    moments.update(torch.from_numpy(x * 10.0**exponent))
    cloud = measure_cloud(moments, spectra=False, neighbours=False)
    (found,) = (one for one in cloud.estimates["all"] if one.metric == "kurtosis")
    if abs(exponent) > 64:
        assert found.value is None
        assert any("rescale" in note for note in cloud.notes)
    else:
        assert found.value == pytest.approx((x**4).mean() / (x**2).mean() ** 2, rel=1e-12)
        assert not any("rescale" in note for note in cloud.notes)


@pytest.mark.parametrize("dtype", [">f8", np.longdouble, np.int64, ">f4", np.float16])
def test_no_type_of_numbers_loses_digits(dtype: Any) -> None:
    """Whatever is wider than float32 is summed in float64, in any byte order."""
    x = (np.random.default_rng(0).standard_normal((300, 3)) * 1000 + 1e4).astype(dtype)
    narrow, exact = Moments(3), x.astype(float)
    narrow.update(x)
    assert bool(narrow.sums().single) == (x.dtype.itemsize <= 4)
    np.testing.assert_allclose(narrow.sums().second, exact.T @ exact, rtol=1e-6 if x.dtype.itemsize <= 4 else 1e-13)
