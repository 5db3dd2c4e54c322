"""The page for every reader: links, keyboard, contrast, phones, paper, and names that try to be scripts."""

from __future__ import annotations

from itertools import pairwise

import pytest

import report_runs
from anisoscope.report.page.write import write_page
from anisoscope.runs.store import write_run
from anisoscope.runs.table import Row
from browser_page import HOSTILE, drawn, figure, needs_chromium, saved, sync_api

pytestmark = needs_chromium


def test_a_link_shows_the_same_view_and_back_takes_a_choice_back(opened, file):
    page = opened(file)
    drawn(page.locator("#layers figure"))
    page.locator("#layers").get_by_label("Metric").select_option("drift_norm")
    page.locator("#heads").get_by_label("Layer", exact=True).select_option("block.2")
    page.locator("#series").get_by_role("slider").press("Home")
    page.locator("#layers").get_by_role("button", name="org/beta").press("Enter")
    address = page.evaluate("location.hash")
    again = opened(file, at=address)
    assert again.locator("#layers h3").first.inner_text() == "Drift norm"
    assert again.locator("#layers").get_by_label("Metric").input_value() == "drift_norm"
    assert again.locator("#head h3").inner_text() == "block.2, head 0"
    assert again.locator("#series output").inner_text() == "0"
    assert "org/beta" not in [line["name"] for line in drawn(again.locator("#layers figure"))]
    page.go_back()
    sync_api.expect(page.locator("#layers").get_by_role("button", name="org/beta")).to_have_attribute(
        "aria-pressed", "true"
    )
    page.go_back()
    sync_api.expect(page.locator("#head h3")).to_have_text("block.0, head 0")
    assert page.locator("#layers").get_by_label("Metric").input_value() == "drift_norm"


def test_a_false_address_shows_the_first_view(opened, file):
    page = opened(file, at="#heads?layers.metric=nothing&heads.head=%3Cimg%20src=x%3E&page.hide=99&series.step=7")
    assert page.locator("#layers").get_by_label("Metric").input_value() == "mean_cosine"
    assert page.locator("#head h3").inner_text() == "block.0, head 0"
    assert page.locator("#series output").inner_text() == "5,000"


@pytest.mark.parametrize(("width", "scheme"), [(390, "dark"), (1280, "light")])
def test_every_section_draws_without_a_message_or_a_second_request(opened, file, width, scheme):
    page = opened(file, width=width, color_scheme=scheme)
    asked = []
    page.on("request", lambda request: asked.append(request.url))
    for chart in page.locator("figure").all():
        chart.scroll_into_view_if_needed()
        chart.locator(".main-svg").first.wait_for()
    assert asked == []
    assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_a_script_that_got_into_the_page_would_not_run(opened, file, tmp_path, browser):
    broken = tmp_path / "broken.html"
    attack = "<script>document.title = 'taken'</script><img src=x onerror=\"document.title = 'taken'\">"
    broken.write_text(file.read_text(encoding="utf-8").replace("</h1>", f"</h1>{attack}"), encoding="utf-8")
    page = browser.new_page()
    page.goto(broken.as_uri())
    page.locator("#lead .main-svg").first.wait_for()
    assert page.title().endswith("anisoscope")
    page.close()


def test_a_link_leads_to_its_section(opened, file):
    page = opened(file, at="#compare")
    sync_api.expect(page.locator("#compare h2")).to_be_in_viewport()
    page.locator("#sections a[href='#compare'][aria-current]").wait_for()


def test_a_link_stands_in_the_address_of_a_short_page_until_the_reader_moves_on(opened, tmp_path):
    file = write_page([report_runs.null_run(tmp_path / "run")], tmp_path / "null.html")
    page = opened(file, at="#provenance")
    page.locator("#sections a[href='#provenance'][aria-current]").wait_for()
    later = "() => new Promise((done) => new IntersectionObserver(() => setTimeout(done)).observe(document.body))"
    page.evaluate(later)  # an observer that was made later has spoken, so that of the sections has
    assert page.evaluate("location.hash") == "#provenance"
    page.mouse.wheel(0, -5000)
    page.locator("#sections a[href='#summary'][aria-current]").wait_for()
    assert page.evaluate("location.hash") == "#summary"


@pytest.mark.parametrize("name", ["sentence-transformers/all-MiniLM-L6-v2-of-a-friend", "&" * 60])
def test_long_names_leave_the_bars_room_on_a_phone(opened, tmp_path, name):
    rows = [
        Row(model=model, site="vocabulary.input", metric="partition_both", value=value, n=99)
        for model, value in ((name, 0.5), ("b", 0.25))
    ]
    run = write_run(tmp_path / "run", command="vocabulary", settings={}, rows=rows, protocol={}, verdict="")
    page = opened(write_page([run], tmp_path / "page.html"), width=390)
    chart = page.locator("#vocabulary figure").first
    drawn(chart)
    box = chart.locator(".plot").bounding_box()
    for label in chart.locator(".ytick text").all():
        assert label.bounding_box()["x"] >= box["x"]
    assert "".join(chart.locator(".ytick text").first.locator("tspan").all_text_contents()) == name
    across = chart.locator(".xtick text").evaluate_all("all => all.map(one => one.getAttribute('transform') ?? '')")
    assert not any("rotate(90" in turn for turn in across)


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
    drawn(page.locator("#layers figure"))
    assert page.evaluate(CONTRAST) == []


def test_a_small_phone_never_scrolls_sideways(opened, file):
    page = opened(file, width=360)
    for section in page.locator("main > section:visible").all():
        section.scroll_into_view_if_needed()
    drawn(figure(page, "Difference in average cosine"))
    assert page.evaluate("document.documentElement.scrollWidth") <= 360


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
    chart = page.locator("#layers figure")
    place = [trace["name"] for trace in drawn(chart)].index(HOSTILE.replace("<", "&lt;").replace(">", "&gt;"))
    assert chart.get_by_role("button", name=HOSTILE, exact=True).is_visible()
    assert page.get_by_role("heading", name=HOSTILE).first.is_visible()
    chart.locator(".plot").evaluate(
        f"plot => window.Plotly.Fx.hover(plot, [{{ curveNumber: {place}, pointNumber: 0 }}])"
    )
    assert HOSTILE in chart.locator(".hoverlayer").first.evaluate("layer => layer.textContent")
    _, content = saved(page, chart.get_by_role("button", name="SVG"))
    assert b"<script" not in content


def test_hovering_tells_value_interval_n_and_site(opened, file):
    page = opened(file)
    chart = page.locator("#layers figure")
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
