"""The tables of the studies follow from the numbers beside them."""

from __future__ import annotations

import csv
import sys
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import ttest_rel

ROOT = Path(__file__).parents[2]
TABLES = ROOT / "docs" / "studies" / "tables"
sys.path.insert(0, str(ROOT / "scripts"))

downstream_summary, variants_power, variants_tables, warning_study = map(
    import_module, ("downstream_summary", "variants_power", "variants_tables", "warning_study")
)


def lines(losses: list[float], **others: list[float]) -> list[dict[str, float]]:
    columns = {"step": [10.0 * i for i in range(len(losses))], "training_loss": losses, **others}
    return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]


def test_the_loss_rises_when_it_stays_above_its_least_value() -> None:
    assert warning_study.rise(lines([9, 3, 2, 2.3, 2.1, 2.3, 2.4]), 0.2) == 60
    assert warning_study.rise(lines([9, 3, 2, 2.3, 2.1, 2.3, 2.1]), 0.2) is None
    worst = {10.0 * i: 3.0 for i in range(7)}
    assert warning_study.behind(lines([9, 3.5, 2, 3.5, 3.1, 2, 2]), worst) == 40


def test_a_bound_is_twice_the_worst_healthy_value() -> None:
    healthy = [lines([1, 1, 1], max_logit=[1.0, 4.0, 3.0], effective_rank=[9.0, 8.0, 2.0])]
    level = warning_study.Level("max_logit")
    assert level.bound(healthy) == 8.0
    assert level.first(lines([1, 1, 1], max_logit=[1.0, 7.0, 9.0]), 8.0) == 20
    falling = warning_study.Level("effective_rank", falling=True, after=10)
    assert falling.bound(healthy) == 1.0
    assert falling.first(lines([1, 1, 1], effective_rank=[0.5, 3.0, 0.7]), 1.0) == 20


@pytest.mark.parametrize("rule", ["logit_growth", "norm_growth"])
def test_the_published_alarms_are_those_of_the_published_series(rule: str) -> None:
    trainings = warning_study.read(TABLES / "warning-series.csv")
    bound = 2 * max(
        x[warning_study.LEVELS[rule].metric]
        for (a, s), t in trainings.items()
        if a == "healthy" and s % 2 == 0
        for x in t
    )
    published = {(x["arm"], int(x["seed"])): x[rule] for x in csv.DictReader((TABLES / "warning-alarms.csv").open())}
    assert published.keys() == trainings.keys()
    for one, series in trainings.items():
        over = [x["step"] for x in series if x.get(warning_study.LEVELS[rule].metric, 0.0) > bound]
        assert published[one] == (f"{over[0]:.0f}" if over else "")


def test_the_spread_of_a_difference_is_taken_within_seeds(tmp_path) -> None:
    table = tmp_path / "seeds.csv"
    rows = [("softmax", s, v) for s, v in enumerate((1.0, 5.0, 9.0))] + [
        ("gated", s, v) for s, v in enumerate((0.5, 4.4, 8.2))
    ]
    table.write_text("model,seed,site,metric,value\n" + "".join(f"{m},{s},,validation_loss,{v}\n" for m, s, v in rows))
    assert variants_power.spreads(table) == {
        ("gated", "validation_loss"): pytest.approx(np.std([0.5, 0.6, 0.8], ddof=1))
    }


def test_the_page_of_the_variants_has_the_numbers_of_its_table() -> None:
    page = (TABLES.parent / "variants.md").read_text(encoding="utf-8")
    cells = variants_tables.read(TABLES / "variants.csv")
    assert page == variants_tables.put(page, variants_tables.tables(cells))
    family = {
        row["note"].rpartition("Holm over ")[2].partition(";")[0] for row in cells.values() if "Holm" in row["note"]
    }
    assert [f"over all {n} " in page for n in family] == [True]


def test_a_difference_of_the_variants_is_recomputed() -> None:
    rows = [row for row in csv.DictReader((TABLES / "variants.csv").open()) if row["seed"] and row["site"] == "blocks"]
    values = {(row["model"], row["seed"]): float(row["value"]) for row in rows if row["metric"] == "mean_cosine"}
    for arm in {arm for arm, _ in values} - {"softmax"}:
        seeds = [seed for name, seed in values if name == arm]
        told = variants_tables.read(TABLES / "variants.csv")[arm, "blocks", "mean_cosine_difference"]
        found = ttest_rel([values[arm, seed] for seed in seeds], [values["softmax", seed] for seed in seeds])
        ends = found.confidence_interval()
        assert (float(told["low"]), float(told["high"])) == pytest.approx((ends.low, ends.high), abs=2e-5)


def test_trainings_of_another_file_join_the_table_and_are_corrected_with_the_rest(tmp_path: Path) -> None:
    """An arm and a seed of another, kept in a second file, give the table again, Holm's p over all of it too."""
    whole = [row for row in csv.reader((TABLES / "variants.csv").open()) if row[3] in ("site", "blocks", "")]
    for name, second in (("table", False), ("more", True)):
        kept = [row for row in whole[1:] if row[1] and (row[0] == "gated" or row[:2] == ["muon", "2"]) is second]
        with (tmp_path / f"{name}.csv").open("w", newline="") as file:
            csv.writer(file).writerows([whole[0], *kept])
    variants_tables.join(tmp_path / "table.csv", [tmp_path / "more.csv"])
    found, expected = (variants_tables.read(path) for path in (tmp_path / "table.csv", TABLES / "variants.csv"))
    assert found.keys() == {place for place in expected if place[1] in ("blocks", "")}
    for place, row in found.items():
        for end in ("value", "low", "high"):
            assert float(row[end] or 0) == pytest.approx(float(expected[place][end] or 0), abs=2e-5)
        holm = [float(one.partition(" by Holm")[0]) for one in row["note"].split("; ") if "by Holm" in one]
        told = [float(o.partition(" by Holm")[0]) for o in expected[place]["note"].split("; ") if "by Holm" in o]
        assert holm == pytest.approx(told, rel=0.3)


def test_the_page_of_the_probes_has_the_numbers_of_its_table() -> None:
    page = (TABLES.parent / "downstream.md").read_text(encoding="utf-8")
    told, tied = (
        list(csv.DictReader((TABLES / f"downstream-{name}.csv").open())) for name in ("summary", "correlations")
    )
    assert page == downstream_summary.put(page, told, tied)
    assert f"over all {sum(bool(line['p_holm']) for line in told)} contrasts" in page
