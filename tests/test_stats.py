"""bench.stats: figures worked out by hand, and rates found by simulation from seeded generators."""

from __future__ import annotations

import itertools
import math
import random
import statistics

import pytest

from bench import stats
from bench.student_t import t_quantile, t_tail

RAISED_3 = 1 + (math.sqrt(math.pi / 2) - 1) / 9  # the error of a median of three relative to that of their mean


def replicates(generator: random.Random, count: int, spread: float, centre: float = 1.0) -> list[float]:
    return [centre * math.exp(generator.gauss(0, spread)) for _ in range(count)]


def three(centre: float, spread: float) -> list[float]:
    """Three replicates whose logarithms have exactly this standard deviation."""
    return [centre * math.exp(step * spread) for step in (1, -1, 0)]


# --- Student's t, against printed tables ---


@pytest.mark.parametrize(
    ("tail", "freedom", "expected"),
    [
        (0.05, 1, 12.706), (0.05, 2, 4.303), (0.05, 4, 2.776), (0.05, 10, 2.228), (0.05, 120, 1.980),
        (0.01, 1, 63.657), (0.01, 5, 4.032), (0.001, 3, 12.924), (0.05, math.inf, 1.960), (0.01, math.inf, 2.576),
    ],
)  # fmt: skip
def test_quantiles_of_student_t(tail: float, freedom: float, expected: float) -> None:
    assert t_quantile(tail, freedom) == pytest.approx(expected, abs=6e-4)
    assert t_tail(t_quantile(tail, freedom), freedom) == pytest.approx(tail, rel=1e-9)


def test_student_t_of_broken_degrees_of_freedom_lies_between_the_whole_ones() -> None:
    assert t_quantile(0.05, 3) < t_quantile(0.05, 2.5) < t_quantile(0.05, 2)
    assert t_tail(0.0, 2.5) == 1.0


# --- one set of replicates ---


def test_interval_of_two_by_hand() -> None:
    low, high = stats.interval([1.0, 4.0])
    half = 12.7062 * math.log(4) / 2  # t for one degree of freedom times half the distance
    assert (low, high) == pytest.approx((2 * math.exp(-half), 2 * math.exp(half)), rel=1e-3)


def test_interval_of_three_by_hand() -> None:
    low, high = stats.interval(three(10.0, 0.01))
    half = 4.3027 * RAISED_3 * 0.01 / math.sqrt(3)
    assert (low, high) == pytest.approx((10 * math.exp(-half), 10 * math.exp(half)), rel=1e-6)
    assert stats.relative_width(low, high) == pytest.approx(math.expm1(half), rel=1e-4)


@pytest.mark.parametrize("values", [[], [3.0]])
def test_one_replicate_has_no_interval(values: list[float]) -> None:
    assert stats.interval(values) == (None, None)
    assert stats.relative_width(*stats.interval(values)) is None


@pytest.mark.parametrize("count", [3, 4, 5, 8, 10])
def test_the_interval_holds_the_true_value_in_95_of_100(count: int) -> None:
    generator = random.Random(count)
    rounds = 4000
    held = 0
    for _ in range(rounds):
        low, high = stats.interval(replicates(generator, count, 0.05, centre=7.0))
        assert low is not None and high is not None
        held += low <= 7.0 <= high
    assert 0.94 <= held / rounds <= 0.97


# --- ratios ---


def test_b37_half_the_time_is_twice_as_fast_and_the_baseline_is_one() -> None:
    full, x = three(10e-3, 0.01), three(5e-3, 0.01)
    assert stats.speed_up(10e-3, 5e-3) == 2.0
    assert stats.speed_up(10e-3, 10e-3) == 1.0
    assert stats.ratio(full, x).value == pytest.approx(0.5)
    assert stats.ratio(full, full).value == 1.0
    assert stats.ratio(x, full).value == pytest.approx(2.0)


def test_ratio_of_two_sets_by_hand() -> None:
    found = stats.log_ratio(three(1.0, 0.01), three(2.0, 0.02))
    assert found is not None
    assert found.value == pytest.approx(math.log(2))
    assert found.error == pytest.approx(RAISED_3 * math.sqrt((0.01**2 + 0.02**2) / 3))
    assert found.freedom == pytest.approx(50 / 17)  # (1 + 4)^2 / ((1 + 16) / 2), after Welch and Satterthwaite


def test_a_ratio_to_one_replicate_has_no_interval() -> None:
    assert stats.ratio([2.0], three(1.0, 0.1)) == stats.Interval(0.5, None, None)
    assert stats.log_ratio(three(1.0, 0.1), [2.0]) is None


def test_one_slow_process_in_seven_does_not_hide_a_difference() -> None:
    steady = [1.00, 1.01, 0.99, 1.02, 0.98, 1.005]
    found = [stats.log_ratio([*steady, slow], [1.1 * value for value in steady] + [1.1 * slow]) for slow in (1.03, 9.0)]
    assert found[0] is not None and found[1] is not None
    assert found[1].error == pytest.approx(found[0].error)
    assert stats.interval([*steady, 9.0])[1] > 2 * stats.interval([*steady, 1.03])[1] - 1  # type: ignore[operator]


def test_identical_replicates_give_a_ratio_without_doubt() -> None:
    found = stats.log_ratio([1.0, 1.0, 1.0], [1.2, 1.2, 1.2])
    assert found is not None
    assert found.bounds() == pytest.approx((math.log(1.2), math.log(1.2)))
    assert (found.p_beyond(0.1), found.p_beyond(0.2)) == (0.0, 1.0)


@pytest.mark.parametrize("floor", [0.0, 0.02, 0.05])
def test_the_p_value_says_whether_the_interval_lies_beyond_the_floor(floor: float) -> None:
    generator = random.Random(5)
    for _ in range(200):
        found = stats.log_ratio(replicates(generator, 4, 0.02), replicates(generator, 5, 0.02, centre=1.08))
        assert found is not None
        for confidence in (0.9, 0.95, 0.99):
            low, high = found.bounds(confidence)
            assert (found.p_beyond(floor) <= 1 - confidence) == (low >= floor or high <= -floor)


@pytest.mark.parametrize(("count", "slow"), [(3, 0.0), (5, 0.0), (8, 0.0), (8, 0.1), (10, 0.1)])
def test_the_same_against_itself_differs_in_at_most_5_of_100(count: int, slow: float) -> None:
    """slow: share of replicates that are slower, as on a shared machine."""
    generator = random.Random(17 + count)
    rounds = 4000

    def noisy() -> list[float]:
        return [v * (1 + (generator.random() < slow) * generator.random()) for v in replicates(generator, count, 0.02)]

    called = 0
    for _ in range(rounds):
        found = stats.log_ratio(noisy(), noisy())
        assert found is not None
        called += found.p_beyond(0.0) <= 0.05
    assert called / rounds <= 0.05


def test_holm_by_hand() -> None:
    assert stats.holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert stats.holm([0.5, 0.9]) == [1.0, 1.0]
    assert stats.holm([0.02]) == [0.02]
    assert stats.holm([]) == []


# --- many cells ---


def test_b39_a_mean_says_over_how_many_and_how_many_failed() -> None:
    found = stats.geometric_mean([2.0, 0.5, None])
    assert found.value == pytest.approx(1.0)
    assert (found.count, found.failed) == (2, 1)
    assert stats.geometric_mean([None, None]) == stats.Mean(None, 0, 2)


def test_the_pareto_front_of_time_memory_and_error_by_hand() -> None:
    points = {
        "fast": (1.0, 9.0, 0.5),
        "small": (5.0, 1.0, 0.5),
        "exact": (9.0, 9.0, 0.0),
        "twin": (1.0, 9.0, 0.5),
        "beaten": (5.0, 2.0, 0.5),
        "unknown": (0.1, None, 0.0),
    }
    assert stats.pareto(points) == ["fast", "small", "exact", "twin"]
    assert stats.pareto({}) == []


def test_the_noise_floor_by_hand() -> None:
    jump = [1.0, 1.0, 1.0, 1.1, 1.1, 1.1]  # two groups that do not overlap: 10 % apart
    assert stats.noise_floor({"a": jump}) == pytest.approx(0.1)
    assert stats.noise_floor({"a": [1 / value for value in jump]}) == pytest.approx(0.1)
    assert stats.noise_floor({"a": jump, "b": [2.0] * 6}) == pytest.approx(math.expm1(0.95 * math.log(1.1)))
    assert stats.noise_floor({"a": [1.0] * 5}) is None


def test_the_noise_floor_of_steady_replicates_is_that_of_medians_of_three() -> None:
    generator = random.Random(3)
    found = stats.noise_floor({str(cell): replicates(generator, 12, 0.02) for cell in range(200)})
    expected = 1.96 * math.sqrt(2) * 0.6698 * 0.02  # 0.6698: standard deviation of a normal median of three
    assert found == pytest.approx(expected, rel=0.1)


# --- along the length ---


def test_b45_the_exponent_of_8192_to_16384_is_1_98() -> None:
    found = stats.scaling_exponent({8192: [4.085], 16384: [16.107]})
    assert found is not None
    assert round(found.value, 2) == 1.98
    assert (found.low, found.high) == (None, None)
    assert found.lengths == (8192, 16384)


def test_b46_causal_and_full_have_the_exponent_2_and_the_ratio_one_half() -> None:
    lengths = (1024, 2048, 4096, 8192)
    full = {n: three(3e-9 * n**2, 0.01) for n in lengths}
    causal = {n: [seconds / 2 for seconds in times] for n, times in full.items()}
    for figures in (full, causal):
        found = stats.scaling_exponent(figures)
        assert found is not None and found.low is not None and found.high is not None
        assert found.value == pytest.approx(2.0)
        assert found.low < 2.0 < found.high
    assert stats.ratio(full[8192], causal[8192]).value == pytest.approx(0.5)


def test_the_exponent_is_fitted_over_the_longest_lengths_only() -> None:
    times = {n: [1.0 + (n / 1000) ** 2] for n in (1, 2, 4, 100_000, 200_000, 400_000)}
    found = stats.scaling_exponent(times)
    assert found is not None
    assert found.value == pytest.approx(2.0, abs=0.001)
    assert found.lengths == (100_000, 200_000, 400_000)
    assert stats.scaling_exponent({512: [1.0], 1024: []}) is None


def test_the_interval_of_an_exponent_by_hand() -> None:
    found = stats.scaling_exponent({1000: three(1.0, 0.01), 2000: three(2.0, 0.01)})
    assert found is not None and found.low is not None and found.high is not None
    half = 2.7764 * RAISED_3 * 0.01 * math.sqrt(2 / 3) / math.log(2)  # t for four degrees of freedom
    assert (found.value - found.low, found.high - found.value) == pytest.approx((half, half), rel=1e-4)


def test_the_interval_of_an_exponent_holds_the_true_one_in_95_of_100() -> None:
    generator = random.Random(11)
    rounds, held = 1500, 0
    for _ in range(rounds):
        found = stats.scaling_exponent({n: replicates(generator, 4, 0.03, centre=n**1.5) for n in (512, 1024, 2048)})
        assert found is not None and found.low is not None and found.high is not None
        held += found.low <= 1.5 <= found.high
    assert 0.94 <= held / rounds <= 0.985


SHORT, LONG = 16, 64


def test_b41_a_crossover_is_interpolated_between_measured_lengths() -> None:
    first = {SHORT: three(1.0, 0.01), LONG: three(1.0, 0.01)}
    second = {SHORT: three(2.0, 0.01), LONG: three(0.5, 0.01)}
    found = stats.crossover(first, second)
    assert found is not None and found.low is not None and found.high is not None
    assert found.length == pytest.approx(32.0)
    assert found.winner == "second"
    # On the way from a ratio of 1/2 to 2, the interval of ±h around it holds 1 over h / ln 2 of the way, either side.
    half = 2.7764 * RAISED_3 * 0.01 * math.sqrt(2 / 3)
    factor = 2 ** (half / math.log(2))
    assert (found.low, found.high) == pytest.approx((32 / factor, 32 * factor), rel=1e-4)
    turned = stats.crossover(second, first)
    assert turned is not None and turned.low is not None
    assert (turned.length, turned.low, turned.winner) == pytest.approx((found.length, found.low, "first"))


def test_b41_none_in_range_is_an_answer_and_nothing_is_extrapolated() -> None:
    first = {512: three(1.0, 0.01), 1024: three(4.0, 0.01)}
    nearing = {512: three(2.0, 0.01), 1024: three(4.4, 0.01), 2048: three(9.0, 0.01)}
    assert stats.crossover(first, nearing) is None
    assert stats.crossover(first, {2048: three(1.0, 0.01)}) is None
    assert stats.crossover(first, {512: [], 1024: three(1.0, 0.01)}) is None


def test_b41_noise_does_not_cross() -> None:
    generator = random.Random(9)
    lengths = (16, 32, 64, 128, 256)
    runs = [[{n: replicates(generator, 4, 0.05) for n in lengths} for _ in range(2)] for _ in range(300)]
    found = [stats.crossover(*pair) for pair in runs]
    changes = [
        sum(
            (statistics.median(a[i]) > statistics.median(b[i])) != (statistics.median(a[j]) > statistics.median(b[j]))
            for i, j in itertools.pairwise(lengths)
        )
        for a, b in runs
    ]
    assert sum(change > 0 for change in changes) > 250  # the medians cross all the time
    assert sum(one is not None for one in found) <= 6


def test_the_last_of_several_crossovers_counts_and_unsure_lengths_lie_inside() -> None:
    first = {n: three(1.0, 0.02) for n in (16, 32, 64, 128, 256)}
    ratios = {16: 0.5, 32: 2.0, 64: 1.001, 128: 0.999, 256: 0.5}
    second = {n: three(value, 0.02) for n, value in ratios.items()}
    found = stats.crossover(first, second)
    assert found is not None and found.low is not None and found.high is not None
    assert found.winner == "second"
    assert 32 < found.low < 64 < found.length < 128 < found.high < 256


def test_a_crossover_of_single_replicates_has_no_interval() -> None:
    found = stats.crossover({SHORT: [1.0], LONG: [1.0]}, {SHORT: [2.0], LONG: [0.5]})
    assert found == stats.Crossover(pytest.approx(32.0), None, None, "second")


def test_the_interval_of_a_crossover_holds_the_true_length() -> None:
    generator = random.Random(13)
    rounds, held = 600, 0
    for _ in range(rounds):
        first = {n: replicates(generator, 4, 0.03, centre=n**2 / 1024) for n in (8, 16, 64, 128)}
        second = {n: replicates(generator, 4, 0.03, centre=n / 32) for n in (8, 16, 64, 128)}
        found = stats.crossover(first, second)
        assert found is not None and found.low is not None and found.high is not None
        assert found.low <= found.length <= found.high
        held += found.low <= 1024 / 32 <= found.high
    assert held / rounds >= 0.95
