"""Texts of sampled vectors on the page: hovering, neighbours, hubs, tokens."""

from __future__ import annotations

import numpy as np
import pytest

import anisoscope
import report_runs
from anisoscope.report.page.write import write_page
from anisoscope.runs.store import open_run
from browser_page import HOSTILE, drawn, figure, needs_chromium

pytestmark = needs_chromium
HOVER = "plot => Plotly.Fx.hover(plot, [{ curveNumber: 0, pointNumber: %d }])"


def test_sampled_vectors_show_their_text_where_the_run_kept_it(opened, tmp_path):
    told = report_runs.series_run(tmp_path / "told", texts=[HOSTILE, "a second text"])
    plain = report_runs.series_run(tmp_path / "plain")
    hovered = []
    for run in (told, plain):
        page = opened(write_page([run], tmp_path / f"{run.name}.html"))
        chart = figure(page, "Queries and keys of block.0, head 0")
        drawn(chart)
        hovered.append(chart.locator(".plot").evaluate("plot => [plot.data[0].hoverinfo, plot.data[0].text]"))
        if run is told:
            chart.locator(".plot").evaluate("plot => Plotly.Fx.hover(plot, [{ curveNumber: 0, pointNumber: 0 }])")
            assert HOSTILE in chart.locator(".hoverlayer").first.evaluate("layer => layer.textContent")
    assert hovered[0][1][1] == "a second text"
    assert hovered[1] == ["skip", None]


LONG = "a text of many words that is longer than a chart is wide, and longer still, on a screen of any width"


@pytest.fixture
def named(tmp_path):
    """Forty vectors around a circle, each named by its place, one name hostile; the nearest of each are its sides."""
    turn = 2 * np.pi * np.arange(40) / 40
    x = np.stack([np.cos(turn), np.sin(turn), 0.01 * np.cos(3 * turn)], axis=1)
    words = np.array([f"place {k}" for k in range(38)] + [LONG, HOSTILE])
    np.savez(tmp_path / "x.npz", x=x, word=words)
    made = {"column": "x", "ids": "word", "keep_text": True, "spectrum": False}
    run = anisoscope.vectors(tmp_path / "x.npz", **made, out=tmp_path / "run")
    return write_page([open_run(run.run.folder)], tmp_path / "page.html")


def test_neighbours_and_hubs_are_told_by_text(opened, named):
    page = opened(named, at="#neighbours")
    chart = figure(page, "Sampled vectors")
    assert len(drawn(chart)[0]["x"]) == 40
    section = page.locator("#neighbours")
    section.get_by_label("Vector", exact=True).select_option(label="place 10")
    lists = section.locator(".panel")
    nearest = [row.split("\t") for row in lists.nth(0).locator("tbody tr").all_inner_texts()]
    assert {text for text, _ in nearest} == {f"place {k}" for k in (7, 8, 9, 11, 12, 13)}
    assert float(nearest[0][1]) == pytest.approx(np.cos(2 * np.pi / 40), abs=1e-3)
    assert lists.nth(1).locator("tbody tr").count() == 10
    again = opened(named, at=page.evaluate("location.hash"))
    assert again.locator("#neighbours .hint").first.inner_text() == "of place 10"
    section.get_by_label("Vector", exact=True).select_option(label=HOSTILE)
    assert lists.nth(0).locator(".hint").inner_text() == f"of {HOSTILE}"
    place = chart.locator(".plot").evaluate("(plot, name) => plot.data[0].text.indexOf(name)", "place 3")
    chart.locator(".plot").evaluate(HOVER % place)
    assert chart.locator(".hoverlayer").first.evaluate("layer => layer.textContent") == "place 3"
    texts = chart.locator(".plot").evaluate("plot => plot.data[0].text")
    (lines,) = [text.split("<br>") for text in texts if text.replace("<br>", " ") == LONG]
    assert max(map(len, lines)) <= 44  # a hover text is not wrapped by itself, and the chart would cut it


def test_tokens_of_a_vocabulary_are_shown_by_name(opened, tmp_path):
    page = opened(write_page([report_runs.vocabulary_run(tmp_path / "run")], tmp_path / "page.html"))
    section = page.locator("#vocabulary")
    section.get_by_label("Matrix").select_option(label="input, step 0")
    chart = figure(page, "Tokens: input, step 0")
    assert drawn(chart)[0]["x"] == [1, 2, 3]
    assert chart.locator(".plot").evaluate("plot => plot.data[0].text") == ["“a”", "“&lt;b&gt;”", "no token"]
    chart.locator(".plot").evaluate(HOVER % 1)
    assert chart.locator(".hoverlayer").first.evaluate("layer => layer.textContent") == "“<b>”"
