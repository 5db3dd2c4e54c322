"""Rules of warning on series of numbers that were made up, each with what it must and must not say."""

from __future__ import annotations

from dataclasses import replace

import pytest

from anisoscope.inference.metrics import lookup
from anisoscope.inference.thresholds import RULES, Band, Rule
from anisoscope.runs.table import Row
from anisoscope.watch.rules import Alarm, alarms_of

FIRST = 2000  # past every warm-up


def _rows(metric: str, *series: list[float | None]) -> list[Row]:
    """Rows of the sites block.0, block.1, …, one step after the other."""
    steps = range(len(series[0]))
    sites = range(len(series))
    return [Row(step=FIRST + s, site=f"block.{k}", metric=metric, value=series[k][s]) for s in steps for k in sites]


CASES = {
    "nan": ("nonfinite_vectors", [0.0, 0.0, 3.0, 3.0], 2),
    "drift": ("mean_cosine", [0.2, 0.21, 0.2, 0.19, 0.2, 0.5, 0.6], 6),
    "rank_collapse": ("effective_rank", [50.0, 51, 50, 49, 50, 20, 10], 6),
    "entropy_collapse": ("entropy_collapse", [0.1, 0.1, 0.12, 0.1, 0.1, 0.4, 0.6], 6),
    "logit_growth": ("max_logit", [8.0, 8.1, 8, 7.9, 8, 20, 40], 6),
    "massive_activation": ("massive_activation_ratio", [30.0, 31, 30, 29, 30, 200, 900], 6),
}


def test_every_rule_has_a_case_and_a_declared_metric() -> None:
    assert {rule.name for rule in RULES} == set(CASES)
    assert all(lookup(rule.metric) for rule in RULES)


@pytest.mark.parametrize("name", CASES)
def test_a_rule_warns_where_its_number_goes_wrong_and_only_there(name: str) -> None:
    metric, bad, at = CASES[name]
    quiet = [bad[0]] * len(bad)
    (alarm,) = alarms_of(_rows(metric, quiet, bad))
    assert (alarm.rule, alarm.site, alarm.step, alarm.value) == (name, "block.1", FIRST + at, bad[at])
    assert alarm.message.endswith(f" at step {FIRST + at}")
    assert alarms_of(_rows(metric, quiet, quiet)) == []
    mirrored = [2 * bad[0] - value for value in bad]
    assert name == "nan" or alarms_of(_rows(metric, quiet, mirrored)) == [], "the other way is no reason to warn"


def test_steady_growth_is_seen() -> None:
    """A band made of standard deviations is as wide as the growth."""
    growing: list[float | None] = [1.6**k for k in range(14)]
    assert alarms_of(_rows("max_logit", growing))[0].rule == "logit_growth"
    assert not Band(margin=5.0, factor=1.0).left([1.6**k for k in range(14)])


def test_a_warm_up_does_not_count_for_bands_but_nan_does() -> None:
    early = [replace(row, step=(row.step or 0) - FIRST) for row in _rows("mean_cosine", CASES["drift"][1])]
    assert alarms_of(early) == []
    broken = [replace(row, metric="nonfinite_vectors", value=1.0) for row in early]
    assert [(alarm.rule, alarm.step) for alarm in alarms_of(broken)] == [("nan", 0)], (
        "an alarm that stands is told once"
    )


def test_rules_of_the_last_site_read_no_other() -> None:
    quiet, bad = [0.2] * 7, CASES["drift"][1]
    assert alarms_of(_rows("mean_cosine", bad, quiet)) == []


def test_missing_numbers_are_passed_over() -> None:
    series: list[float | None] = [8.0, 8.1, None, 8, 7.9, 8, None, 20, 40]
    assert [alarm.step for alarm in alarms_of(_rows("max_logit", series))] == [FIRST + 8]


def test_a_bound_warns_at_once_and_again_after_a_pause() -> None:
    rule = Rule("high", "max_logit", "{site} is above {level:.0f}: {value:.0f}", bound=100.0)
    found = alarms_of(_rows("max_logit", [50.0, 120, 130, 90, 110]), [rule])
    expected = [Alarm("high", "block.0", FIRST + 1, 120.0, None, f"block.0 is above 100: 120 at step {FIRST + 1}")]
    assert found[:1] == expected
    assert [alarm.step - FIRST for alarm in found] == [1, 4]


def test_a_band_falls_as_it_rises() -> None:
    band = Band(margin=0.0, factor=0.5)
    assert band.left([10.0] * 5 + [4, 4.9], falling=True)
    assert not band.left([10.0] * 5 + [4, 5.1], falling=True)
    assert not band.left([10.0] * 5 + [16, 16], falling=True)
