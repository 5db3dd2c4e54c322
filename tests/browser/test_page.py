"""The page in a real browser: it opens offline, draws, toggles, slides, filters, exports, links, prints."""

from __future__ import annotations

import csv
import io
from itertools import pairwise
from pathlib import Path

import pytest

import report_runs
from anisoscope.report.page.write import write_page

sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
CHROMIUM = Path("/usr/bin/chromium")
FLAGS = (
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
)  # fmt: skip
HOSTILE = "<script>alert(1)</script>"
pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(not CHROMIUM.exists(), reason=f"there is no Chromium at {CHROMIUM}"),
]


@pytest.fixture(scope="module")
def browser():
    with sync_api.sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=str(CHROMIUM), args=list(FLAGS))
        yield opened
        opened.close()


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    folder = tmp_path_factory.mktemp("page")
    return write_page(report_runs.every_run(folder / "runs"), folder / "report.html")


@pytest.fixture
def opened(browser):
    """Open a page by address; whatever went wrong in it fails the test at its end."""
    contexts, wrong, asked = [], [], []

    def visit(path: Path, *, at: str = "", width: int = 1280, **options):
        context = browser.new_context(viewport={"width": width, "height": 900}, reduced_motion="reduce", **options)
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(90_000)
        page.on("console", lambda message: wrong.append(message.text) if message.type in ("error", "warning") else None)
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("dialog", lambda dialog: (wrong.append(f"dialog: {dialog.message}"), dialog.dismiss()))
        page.on("request", lambda request: asked.append(request.url))
        page.goto(f"{path.as_uri()}{at}")
        return page

    yield visit
    for context in contexts:
        context.close()
    assert wrong == []
    assert [url for url in asked if not url.startswith(("file:", "data:", "blob:"))] == []


def figure(page, title: str):
    return page.locator("figure", has=page.get_by_role("heading", name=title, exact=True))


def drawn(found):
    """The figure's lines as plotly holds them, once it is drawn."""
    found.scroll_into_view_if_needed()
    found.locator(".main-svg").first.wait_for()
    return found.locator(".plot").evaluate("plot => plot.data.map(({name, x, y, z}) => ({name, x, y, z}))")


def saved(page, button) -> tuple[str, bytes]:
    with page.expect_download() as waiting:
        button.click()
    return waiting.value.suggested_filename, Path(waiting.value.path()).read_bytes()


def test_only_the_sections_that_the_runs_hold(opened, file, tmp_path):
    page = opened(file)
    names = page.get_by_role("navigation", name="Sections").get_by_role("link").all_inner_texts()
    assert names == ["Summary", "Layers", "Drift", "Spectrum", "Dimensions", "Heads", "Series", "Block",
                     "Thresholds", "Null", "Comparison", "Table", "Provenance"]  # fmt: skip
    alone = opened(write_page([report_runs.null_run(tmp_path / "run")], tmp_path / "null.html"))
    assert alone.locator("#sections a").all_inner_texts() == ["Summary", "Null", "Table", "Provenance"]


def test_charts_are_drawn_when_they_come_into_view(opened, file):
    page = opened(file)
    assert page.locator("#compare .main-svg").count() == 0
    page.locator("#compare figure").scroll_into_view_if_needed()
    page.locator("#compare .main-svg").first.wait_for()


def test_the_curve_is_the_table_and_a_metric_can_be_chosen(opened, file):
    page = opened(file)
    line = next(trace for trace in drawn(figure(page, "Average cosine")) if trace["name"] == "org/beta")
    assert line["x"] == list(range(8))
    assert line["y"] == pytest.approx([0.05 + 0.03 * k for k in range(8)])
    page.get_by_label("Metric").first.select_option("drift_norm")
    line = next(trace for trace in drawn(figure(page, "Drift norm")) if trace["name"] == "org/beta")
    assert line["y"][1] == pytest.approx(3 + 10 * 0.08)
    page.get_by_label("first only").check(force=True)
    line = next(trace for trace in drawn(figure(page, "Drift norm")) if trace["name"] == "org/beta")
    assert line["y"][1] == pytest.approx(3 + 10 * 0.28)


def test_a_model_is_toggled_everywhere_and_keeps_its_colour(opened, file):
    page = opened(file)
    layers, drift = figure(page, "Average cosine"), figure(page, "Average cosine against drift ratio")
    drawn(layers)
    assert "org/beta" in [trace["name"] for trace in drawn(drift)]
    colour = "plot => plot.data.find(trace => trace.name === 'org/alpha').marker.color"
    assert layers.locator(".plot").evaluate(colour) == drift.locator(".plot").evaluate(colour)
    button = layers.get_by_role("button", name="org/beta")
    button.press("Enter")
    assert button.get_attribute("aria-pressed") == "false"
    assert [trace["name"] for trace in drawn(drift)] == ["org/alpha", "org/series"]


def test_the_step_slider_moves_the_layers(opened, file):
    page = opened(file)
    drawn(figure(page, "Average cosine by layer, step 5,000"))
    page.locator("#series").get_by_role("slider").press("Home")
    line = drawn(figure(page, "Average cosine by layer, step 0"))[-1]
    assert line["y"] == pytest.approx([0.05, 0.1, 0.15])
    page.locator("#series").get_by_role("slider").press("ArrowRight")
    assert page.locator("#series output").inner_text() == "100"
    line = drawn(figure(page, "Average cosine by layer, step 100"))[-1]
    assert line["y"] == pytest.approx([0.15, 0.2, 0.25])


def test_the_drift_slider_moves_the_block(opened, file):
    page = opened(file)
    slider = page.locator("#block").get_by_role("slider")
    slider.press("End")
    assert slider.get_attribute("aria-valuetext") == "N = 40"
    assert page.get_by_role("heading", name="bert at N = 40").is_visible()
    assert [trace["name"] for trace in drawn(figure(page, "Attention scores at this N"))] == ["N = 0", "N = 40"]


def test_a_head_opens_by_click_and_by_keyboard(opened, file):
    page = opened(file)
    name = "Cos(Q̄, K̄) by layer and head"
    cells = drawn(figure(page, name))[0]["z"]
    assert [len(cells), len(cells[0])] == [3, 4]
    page.locator("#heads .plot .nsewdrag").click(position={"x": 20, "y": 20})
    assert page.locator("#head h3").inner_text() == "block.2, head 0"
    page.locator("#heads").get_by_label("Head", exact=True).select_option("3")
    page.locator("#heads").get_by_label("Layer", exact=True).select_option("block.1")
    assert page.locator("#head h3").inner_text() == "block.1, head 3"
    assert page.locator("#head tbody tr").count() == 3


def test_the_table_filters_sorts_and_pages(opened, file):
    page = opened(file)
    table = page.locator("#table")
    assert table.locator("tbody tr").count() == 50
    table.get_by_role("button", name="Next").click()
    assert table.get_by_role("status").inner_text().startswith("51–100 of 1,")
    table.get_by_label("Metric").select_option("mean_cosine")
    table.get_by_role("searchbox").fill("beta block.3")
    sync_api.expect(table.locator("tbody tr")).to_have_count(3)
    table.get_by_role("button", name="value", exact=True).click()
    values = [float(text) for text in table.locator("tbody tr td:nth-child(9)").all_inner_texts()]
    assert values == sorted(values, reverse=True)
    assert table.locator("th[aria-sort=descending]").inner_text() == "value"
    _, content = saved(page, table.get_by_role("button", name="Export CSV"))
    rows = list(csv.DictReader(io.StringIO(content.decode())))
    assert [float(row["value"]) for row in rows] == pytest.approx(values, rel=1e-3)
    assert {row["model"] for row in rows} == {"org/beta"}
    table.get_by_role("searchbox").fill("no such thing")
    table.get_by_text("Nothing matches.").wait_for()


def test_charts_are_saved_as_svg_png_and_csv(opened, file):
    page = opened(file, color_scheme="dark")
    chart = figure(page, "Average cosine")
    drawn(chart)
    name, content = saved(page, chart.get_by_role("button", name="SVG"))
    assert name == "average-cosine.svg"
    assert content.startswith(b"<svg")
    assert b"org/beta" in content  # the legend, which the page itself has as buttons
    _, content = saved(page, chart.get_by_role("button", name="PNG"))
    assert content.startswith(b"\x89PNG")
    _, content = saved(page, chart.get_by_role("button", name="CSV"))
    rows = list(csv.DictReader(io.StringIO(content.decode())))
    assert len(rows) == 8 + 8 + 3
    assert rows[0]["site"] == "embeddings"
    assert float(rows[0]["low"]) == pytest.approx(0.03)


def test_every_chart_reads_as_a_table(opened, file):
    page = opened(file)
    chart = figure(page, "Difference in average cosine")
    drawn(chart)
    assert "3 of 5 sites differ" in chart.locator(".plot").get_attribute("aria-label")
    chart.get_by_text("Data as a table").click()
    assert chart.locator("tbody tr").count() == 5
    assert page.locator("figure:not(:has(details))").count() == 0


def test_a_link_leads_to_its_section(opened, file):
    page = opened(file, at="#compare")
    sync_api.expect(page.locator("#compare h2")).to_be_in_viewport()
    page.locator("#sections a[href='#compare'][aria-current]").wait_for()


def test_dark_follows_the_system_and_the_button(opened, file):
    page = opened(file, color_scheme="dark")
    assert page.locator("html").get_attribute("data-theme") == "dark"
    page.get_by_role("button", name="Switch to light").click()
    assert page.locator("html").get_attribute("data-theme") == "light"
    page.reload()
    assert page.locator("html").get_attribute("data-theme") == "light"
    assert opened(file, color_scheme="light").locator("html").get_attribute("data-theme") == "light"


CONTRAST = """() => {
  const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const paint = (colours) => { canvas.clearRect(0, 0, 1, 1);
    for (const colour of colours) { canvas.fillStyle = colour; canvas.fillRect(0, 0, 1, 1); }
    return [...canvas.getImageData(0, 0, 1, 1).data].slice(0, 3); };
  const light = (rgb) => rgb.map((v) => v / 255).map((v) => (v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4))
    .reduce((sum, v, k) => sum + v * [0.2126, 0.7152, 0.0722][k], 0);
  const poor = [];
  const texts = "h1, h2, h3, h4, p, li, dt, dd, th, a, button:not(:disabled), summary, label, figcaption, output, code";
  for (const one of document.querySelectorAll(`${texts}, select, tr:nth-child(-n+3) td`)) {
    if (!one.checkVisibility() || !one.textContent.trim()) continue;
    const grounds = [];
    for (let up = one; up; up = up.parentElement) grounds.unshift(getComputedStyle(up).backgroundColor);
    const [a, b] = [light(paint([...grounds, getComputedStyle(one).color])), light(paint(grounds))];
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (ratio < 4.5) poor.push(`${one.tagName}.${one.className} ${ratio.toFixed(2)} ${one.textContent.slice(0, 30)}`);
  }
  return poor;
}"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_has_the_contrast_of_wcag_aa(opened, file, scheme):
    page = opened(file, color_scheme=scheme)
    drawn(figure(page, "Average cosine"))
    assert page.evaluate(CONTRAST) == []


@pytest.mark.parametrize("width", [360, 390])
def test_a_phone_never_scrolls_sideways(opened, file, width):
    page = opened(file, width=width)
    for section in page.locator("main > section:visible").all():
        section.scroll_into_view_if_needed()
    drawn(figure(page, "Difference in average cosine"))
    assert page.evaluate("document.documentElement.scrollWidth") <= width


UNNAMED = """() => [...document.querySelectorAll("button, select, input, [role=region], [role=group], nav, section")]
  .filter((one) => !one.getAttribute("aria-label") && !one.getAttribute("aria-labelledby") && !one.textContent.trim())
  .filter((one) => ![...(one.labels || [])].some((label) => label.textContent.trim())).map((one) => one.outerHTML)"""


def test_controls_have_names_and_take_the_keyboard(opened, file):
    page = opened(file)
    unnamed = page.evaluate(UNNAMED)
    assert unnamed == []
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the content"
    assert page.get_by_role("main").count() == page.get_by_role("banner").count() == 1
    levels = page.evaluate("[...document.querySelectorAll('h1,h2,h3,h4')].map((one) => Number(one.tagName[1]))")
    assert levels.count(1) == 1
    assert all(after - before <= 1 for before, after in pairwise(levels))


def test_hostile_names_are_shown_as_they_are(opened, tmp_path):
    run = report_runs.layers_run(tmp_path / "run", (HOSTILE, "</script>"), layers=2)
    page = opened(write_page([run], tmp_path / "page.html"))
    chart = figure(page, "Average cosine")
    drawn(chart)
    assert chart.get_by_role("button", name=HOSTILE, exact=True).is_visible()
    assert page.get_by_role("heading", name=HOSTILE).first.is_visible()
    chart.locator(".plot").evaluate("plot => window.Plotly.Fx.hover(plot, [{ curveNumber: 1, pointNumber: 0 }])")
    assert HOSTILE in chart.locator(".hoverlayer").first.evaluate("layer => layer.textContent")
    _, content = saved(page, chart.get_by_role("button", name="SVG"))
    assert b"<script" not in content


def test_hovering_tells_value_interval_n_and_site(opened, file):
    page = opened(file)
    chart = figure(page, "Average cosine")
    place = [trace["name"] for trace in drawn(chart)].index("org/beta")
    chart.locator(".plot").evaluate(
        f"plot => window.Plotly.Fx.hover(plot, [{{ curveNumber: {place}, pointNumber: 2 }}])"
    )
    told = chart.locator(".hoverlayer").first.evaluate("layer => layer.textContent")
    for part in ("org/beta", "block.1", "0.11", "0.09 … 0.13", "isotropic: 0", "n = 4,096"):
        assert part in told


def test_on_paper_every_chart_is_drawn_in_light_colours(opened, file):
    page = opened(file, color_scheme="dark")
    assert page.pdf().startswith(b"%PDF")
    assert page.locator(".plot:not(:has(.main-svg))").count() == 0
    assert page.locator("html").get_attribute("data-theme") == "dark"  # and back on the screen
