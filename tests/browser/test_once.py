"""What a reader sees once: no chart twice, no two ticks alike, no column that says the same in every row."""

from __future__ import annotations

import numpy as np

import anisoscope
import report_runs
from anisoscope.report.page.write import write_page
from anisoscope.runs.store import write_run
from anisoscope.runs.table import Row
from browser_page import drawn, needs_chromium

pytestmark = needs_chromium


def test_a_chart_that_opens_the_page_is_not_drawn_again(opened, tmp_path):
    vectors, series = report_runs.vectors_run(tmp_path / "x"), report_runs.series_run(tmp_path / "run", steps=(0, 10))
    alone = opened(write_page([vectors], tmp_path / "page.html"))
    assert alone.get_by_role("heading", name="Similarities of pairs").count() == 1
    both = opened(write_page([vectors, series], tmp_path / "both.html"))
    assert both.locator("#lead h2").inner_text() == "Average cosine during training"
    assert both.locator("#vectors").get_by_role("heading", name="Similarities of pairs").count() == 1


def test_the_histogram_of_one_file_stands_once(opened, tmp_path):
    x = np.random.default_rng(0).standard_normal((400, 16)) + 0.5
    np.save(tmp_path / "x.npy", x)
    found = [anisoscope.vectors(tmp_path / "x.npy", neighbours=False), anisoscope.calibrate(tmp_path / "x.npy")]
    runs = [one.save(tmp_path / one.command) for one in found]
    page = opened(write_page(runs, tmp_path / "page.html"))
    assert page.get_by_role("heading", name="Cosine of unrelated pairs by correction").count() == 1
    assert page.get_by_role("heading", name="Similarities of pairs").count() == 0


def test_no_two_ticks_read_alike(opened, tmp_path):
    x = np.random.default_rng(0).standard_normal((400, 64)) + 0.5
    page = opened(write_page([anisoscope.vectors(x, neighbours=False).save(tmp_path / "x")], tmp_path / "page.html"))
    for section in ("#dimensions", "#spectrum"):
        drawn(page.locator(f"{section} figure"))
        ticks = page.locator(f"{section} .ytick text").all_text_contents()
        assert len(ticks) > 2
        assert len(set(ticks)) == len(ticks)


def test_what_is_the_same_in_every_row_is_said_once(opened, tmp_path):
    page = opened(write_page([report_runs.vectors_run(tmp_path / "x")], tmp_path / "page.html"), width=390)
    assert "The same in every row: model x, site vectors" in page.locator("#table .hint").first.inner_text()
    heads = page.locator("#table thead th").all_inner_texts()
    assert heads[:2] == ["metric", "value"]


def test_names_of_a_table_stay_on_one_line_on_a_phone(opened, tmp_path):
    models = ("org/alpha-base-uncased-v2", "org/beta-base-uncased-v2")
    page = opened(write_page([report_runs.layers_run(tmp_path / "run", models)], tmp_path / "page.html"), width=390)
    lines = page.locator("#table tbody td.text:first-child").evaluate_all("""cells => cells.map((cell) => {
        const text = document.createRange();
        text.selectNodeContents(cell);
        return text.getBoundingClientRect().height / parseFloat(getComputedStyle(cell).lineHeight);
    })""")
    assert lines
    assert max(lines) < 2


def test_the_first_chart_of_a_training_draws_states_and_not_what_parts_add(opened, tmp_path):
    rows = [
        Row(model="m", site=site, layer=layer, step=step, metric="mean_cosine", value=value)
        for step in (0, 64)
        for site, layer, value in (("block.0", 0, 0.1), ("block.1", 1, 0.2), ("block.1.attention", None, 0.9))
    ]
    run = write_run(tmp_path / "run", command="sweep", settings={}, rows=rows, protocol={})
    page = opened(write_page([run], tmp_path / "page.html"))
    names = {line["name"] for line in drawn(page.locator("#lead figure")) if line["name"]}
    assert names == {"block.0", "block.1"}
    assert "block.1.attention" in {line["name"] for line in drawn(page.locator("#series figure").first)}
