"""The page in a real browser: it opens offline, draws, toggles, slides, filters, exports, prints."""

from __future__ import annotations

import csv
import io
import time

import pytest

import report_runs
from anisoscope.report.figures.style import PALETTE
from anisoscope.report.page.write import write_page
from anisoscope.runs.store import write_run
from anisoscope.runs.table import Row
from browser_page import drawn, figure, needs_chromium, saved, sync_api

pytestmark = needs_chromium


def test_only_the_sections_that_the_runs_hold(opened, file, tmp_path):
    page = opened(file)
    names = page.get_by_role("navigation", name="Sections").get_by_role("link").all_inner_texts()
    assert names == [
        "Summary",
        "Gate",
        "Vectors",
        "Thresholds",
        "Advice",
        "Layers",
        "Drift",
        "Spectrum",
        "Dimensions",
        "Heads",
        "Training",
        "Block",
        "Interventions",
        "Variants",
        "Vocabulary",
        "Comparison",
        "Null",
        "Table",
        "Provenance",
    ]
    alone = opened(write_page([report_runs.null_run(tmp_path / "run")], tmp_path / "null.html"))
    assert alone.locator("#sections a").all_inner_texts() == ["Summary", "Null", "Table", "Provenance"]


def test_charts_are_drawn_when_they_come_into_view(opened, file):
    page = opened(file)
    assert page.locator("#compare .main-svg").count() == 0
    page.locator("#compare figure").scroll_into_view_if_needed()
    page.locator("#compare .main-svg").first.wait_for()


def test_lines_that_lie_on_each_other_are_both_seen(opened, tmp_path):
    runs = [report_runs.layers_run(tmp_path / name, ("org/alpha",)) for name in ("before", "after")]
    page = opened(write_page(runs, tmp_path / "twice.html"))
    under, over = (trace for trace in drawn(page.locator("#layers figure")) if trace["mode"] == "lines+markers")
    assert under["y"] == over["y"]
    assert under["line"]["width"] > 2 * over["line"]["width"]
    assert (under["opacity"], over.get("opacity")) == (0.4, None)
    labels = page.locator("#layers .legend button").all_inner_texts()
    assert labels[1] == f"{labels[1].split(' (')[0]} (on the line of {labels[0]})"


def test_the_name_of_the_null_keeps_away_from_points(opened, tmp_path):
    """Under the right end of its line, unless points are there: over it, or at the left."""
    for name, cosines, place in (
        ("high", (0.2, 0.4, 0.6, 0.8), (1, "top")),
        ("falls", (0.8, 0.4, 0.1, -0.04), (0, "top")),
    ):
        rows = [
            Row(model="m", site=f"block.{k}", layer=k, metric="mean_cosine", value=value, null=0.0, n=500)
            for k, value in enumerate(cosines)
        ]
        run = write_run(tmp_path / name, command="measure", settings={}, protocol={}, rows=rows)
        chart = opened(write_page([run], tmp_path / f"{name}.html")).locator("#layers figure")
        drawn(chart)
        marks = chart.locator(".plot").evaluate(
            "plot => plot.layout.annotations.map(({text, x, yanchor}) => [text, x, yanchor])"
        )
        assert [(x, anchor) for text, x, anchor in marks if text.startswith("isotropic")] == [place]


def test_the_null_is_as_wide_at_each_site_as_its_number_of_vectors_makes_it(opened, tmp_path):
    """The pooled vectors are few, those of the blocks many: one band for all would take drift for noise."""
    rows = []
    for k, (site, n) in enumerate((("block.0", 90_000), ("block.1", 90_000), ("embedding", 24))):
        place = {"model": "m", "site": site, "layer": k if n > 24 else None, "n": n}
        rows.append(Row(metric="mean_cosine", value=0.05, null=0.0, **place))
        rows.append(Row(metric="dimension", value=384.0, **place))
    run = write_run(tmp_path / "run", command="measure", settings={}, protocol={}, rows=rows)
    chart = opened(write_page([run], tmp_path / "page.html")).locator("#layers figure")
    null, line = drawn(chart)
    reach = 1.96 * (2 / (384 * 24 * 23)) ** 0.5
    assert null["y"][:3] == pytest.approx([0, 0, reach], abs=2e-6)
    layout = chart.locator(".plot").evaluate("({ layout }) => [layout.xaxis.ticktext, layout.annotations[0].text]")
    assert layout == [["0", "1", "pooled"], "isotropic: 0 ± 0.006 at most"]
    assert len(line["x"]) == 3


def test_clouds_that_lie_on_each_other_are_both_seen(opened, tmp_path):
    runs = [report_runs.vectors_run(tmp_path / name) for name in ("before", "after")]
    page = opened(write_page(runs, tmp_path / "twice.html"))
    under, over = (line for line in drawn(page.locator("#lead figure")) if line["name"] != "isotropic")
    assert under["y"] == over["y"]
    assert under["line"]["width"] > 2 * over["line"]["width"]
    assert (under["opacity"], over.get("opacity")) == (0.4, None)
    assert over["name"] == f"after (on the line of {under['name']})"


def test_the_curve_is_the_table_and_a_metric_can_be_chosen(opened, file):
    page = opened(file)
    line = next(trace for trace in drawn(page.locator("#layers figure")) if trace["name"] == "org/beta")
    assert line["x"] == list(range(8))
    assert line["y"] == pytest.approx([0.05 + 0.03 * k for k in range(8)])
    page.locator("#layers").get_by_label("Metric").select_option("drift_norm")
    line = next(trace for trace in drawn(page.locator("#layers figure")) if trace["name"] == "org/beta")
    assert line["y"][1] == pytest.approx(3 + 10 * 0.08)
    page.get_by_label("first only").check(force=True)
    line = next(trace for trace in drawn(page.locator("#layers figure")) if trace["name"] == "org/beta")
    assert line["y"][1] == pytest.approx(3 + 10 * 0.28)


def test_a_model_is_toggled_everywhere_and_keeps_its_colour(opened, file):
    page = opened(file)
    layers, drift = page.locator("#layers figure"), figure(page, "Average cosine against drift ratio")
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
    chart = figure(page, "Cos(Q̄, K̄) by layer and head")
    cells = drawn(chart)[0]["z"]
    assert [len(cells), len(cells[0])] == [3, 4]
    assert page.locator("#head h3").inner_text() == "block.0, head 0"  # the first of those that stand out most
    page.locator("#heads .plot .nsewdrag").click(position={"x": 20, "y": 20})
    assert page.locator("#head h3").inner_text() == "block.2, head 0"
    page.locator("#heads").get_by_label("Head", exact=True).select_option("3")
    page.locator("#heads").get_by_label("Layer", exact=True).select_option("block.1")
    assert page.locator("#head h3").inner_text() == "block.1, head 3"
    assert page.locator("#head tbody tr").count() == 3


def test_heads_beyond_chance_are_outlined_and_cosines_span_their_whole_range(opened, file):
    """tanh(±0.5) and tanh(±1.5) at the last step, against ±1.96·0.25 = ±0.49: half of the heads are beyond."""
    page = opened(file)
    chart = figure(page, "Cos(Q̄, K̄) by layer and head")
    drawn(chart)
    caption = chart.locator("figcaption").inner_text()
    assert caption.startswith("6 of 12 heads lie beyond ±0.49")
    outlined = chart.locator(".plot").evaluate(
        "plot => plot.layout.shapes.map((one) => Math.round((one.x0 + one.x1) / 2))"
    )
    assert sorted(outlined[:6]) == [0, 0, 0, 3, 3, 3]
    assert chart.locator(".plot").evaluate("plot => [plot.data[0].zmin, plot.data[0].zmax]") == [-1, 1]


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
    values = [float(text) for text in table.locator("tbody tr td:nth-child(4)").all_inner_texts()]
    assert values == sorted(values, reverse=True)
    assert table.locator("th[aria-sort=descending]").inner_text() == "value"
    _, content = saved(page, table.get_by_role("button", name="Export CSV"))
    rows = list(csv.DictReader(io.StringIO(content.decode())))
    assert [float(row["value"]) for row in rows] == pytest.approx(values, rel=1e-3)
    assert {row["model"] for row in rows} == {"org/beta"}
    table.get_by_role("searchbox").fill("no such thing")
    table.get_by_text("Nothing matches.").wait_for()


def test_the_table_of_one_model_shows_values_on_a_telephone(opened, tmp_path):
    page = opened(write_page([report_runs.layers_run(tmp_path / "run", ("m",))], tmp_path / "page.html"), width=390)
    assert page.locator("#table thead th:nth-child(3)").inner_text() == "value"
    value = page.locator("#table tbody tr td:nth-child(3)").first.bounding_box()
    assert value["x"] + value["width"] < 390


def test_bytes_are_written_in_full_on_the_axis_of_the_advice(opened, file):
    chart = opened(file).locator("#advise figure")
    drawn(chart)
    ticks = chart.locator(".plot").evaluate("({ layout }) => layout.xaxis.ticktext")
    assert {"2", "5", "10", "50", "100"} <= set(ticks)


def test_charts_are_saved_as_svg_png_and_csv(opened, file):
    page = opened(file, color_scheme="dark")
    chart = page.locator("#layers figure")
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


def test_the_first_screen_holds_the_sentence_and_the_chart_of_the_training(opened, file):
    page = opened(file)
    sync_api.expect(page.locator(".lead")).to_be_in_viewport()
    chart = page.locator("#lead figure")
    lines = drawn(chart)
    assert [line["name"] for line in lines if line["name"]] == ["block.0", "block.1", "block.2"]
    assert "0.45 at step 5,000" in chart.locator(".annotation-text").all_text_contents()


LEADS = {
    "layers": "Average cosine by layer",
    "calibrate": "Cosine of unrelated pairs",
    "vectors": "Similarities of pairs",
    "compare": "Difference in average cosine",
    "intervene": "Change of the loss (nats)",
    "variants": "Average cosine",
    "vocabulary": "I(W), both signs",
    "block": "Average cosine against the drift norm",
    "null": "Cosine of two isotropic vectors",
}


@pytest.mark.parametrize("kind", LEADS)
def test_every_study_opens_with_the_chart_that_matters(opened, tmp_path, kind):
    run = getattr(report_runs, f"{kind}_run")(tmp_path / kind)
    page = opened(write_page([run], tmp_path / "page.html"), width=390)
    assert page.locator("#lead h2").inner_text() == LEADS[kind]
    assert drawn(page.locator("#lead figure"))
    assert page.locator(".card").count() == (2 if kind == "layers" else 1)


def test_thresholds_by_rate_are_not_taken_for_percentiles_by_cosine(opened, tmp_path):
    page = opened(write_page([report_runs.calibrate_run(tmp_path / "run")], tmp_path / "page.html"))
    panel = page.locator("#calibrate .panel")
    lines = [row.split("\t") for row in panel.locator("> .scroll tbody tr").all_inner_texts()]
    assert ["threshold at 5 %", "0.9", "0.3"] in lines
    assert [line[0] for line in lines] == ["mean of the floor", "threshold at 5 %", "threshold at 1 %"]
    panel.get_by_text("From scores to percentiles").click()
    assert panel.locator("details tbody tr").all_inner_texts() == ["0.05\t0.25", "0.5\t25"]


def test_one_cloud_opens_with_the_histogram_of_its_similarities_with_floor_and_threshold(opened, tmp_path):
    page = opened(write_page([report_runs.vectors_run(tmp_path / "x", 0.4)], tmp_path / "page.html"), width=390)
    figure = page.locator("#lead figure")
    assert [line["name"] for line in drawn(figure)] == ["isotropic", "x"]
    labels = "plot => plot.layout.annotations.map(({text}) => text)"
    assert sorted(figure.locator(".plot").evaluate(labels)) == ["5 %: 0.70", "floor: 0.40"]


def test_a_p_value_too_small_for_a_number_is_not_called_0(opened, tmp_path):
    page = opened(
        write_page([report_runs.vectors_run(tmp_path / "x")], tmp_path / "page.html"),
        at="#table?table.metric=rayleigh_p",
    )
    assert "\t< 1e-12\t" in page.locator("#table tbody tr").first.inner_text()


def test_two_clouds_have_the_colour_of_their_run(opened, tmp_path):
    runs = [report_runs.vectors_run(tmp_path / "one"), report_runs.clouds_run(tmp_path / "two")]
    page = opened(write_page(runs, tmp_path / "page.html"), color_scheme="light")
    bars = page.locator("#clouds figure")
    drawn(bars)
    assert bars.locator(".plot").evaluate("plot => plot.data[0].marker.color") == PALETTE[1]


def test_norms_inside_blocks_are_folded_and_one_model_is_not_named_in_every_line(opened, tmp_path):
    sites = {"block.0.input_layernorm": 0, "final_norm": None}
    rows = [Row(model="m", site=one, layer=at, metric="gain_norm", value=2.0) for one, at in sites.items()]
    rows.append(Row(model="m", site="block.0", layer=0, metric="mean_cosine", value=0.3))
    run = write_run(tmp_path / "run", command="final-norm", settings={}, rows=rows, protocol={}, verdict="")
    page = opened(write_page([run], tmp_path / "page.html"))
    lines = page.locator("#norms .panel > .scroll tbody tr").all_inner_texts()
    assert lines == ["final_norm\t2"]
    page.get_by_text("Norms inside the blocks").click()
    assert page.locator("#norms details tbody tr").all_inner_texts() == ["block.0.input_layernorm\t2"]


def test_seeds_are_lines_of_their_own(opened, tmp_path):
    run = report_runs.series_run(tmp_path / "run", steps=(0, 10), seeds=(0, 1))
    page = opened(write_page([run], tmp_path / "page.html"))
    lines = [line for line in drawn(page.locator("#lead figure")) if line["name"]]
    assert [line["name"] for line in lines][:3] == ["block.0, seed 0", "block.0, seed 1", "block.1, seed 0"]
    assert all(line["x"] == [0, 1] for line in lines)
    assert [line["line"]["dash"] for line in lines][:3] == ["solid", "dash", "solid"]
    for caption in ("#lead figcaption", "#layers figcaption"):
        assert "olid: seed 0, broken: seed 1" in page.locator(caption).first.inner_text()


def test_models_with_the_same_sites_share_an_axis_that_names_them(opened, tmp_path):
    """Ticks are sites, as in tables and hover texts; no marker is cut by the edge of the chart."""
    run = report_runs.layers_run(tmp_path / "run", ("org/alpha", "org/beta"))
    page = opened(write_page([run], tmp_path / "page.html"))
    chart = page.locator("#layers figure")
    drawn(chart)
    found = chart.locator(".plot").evaluate("({ layout }) => layout.xaxis")
    assert found["title"]["text"] == "block"
    assert found["ticktext"][:3] == ["emb.", "0", "1"]
    assert found["range"][0] < found["tickvals"][0]
    assert found["tickvals"][-1] < found["range"][1]


def test_interventions_stand_beside_their_controls(opened, file):
    page = opened(file)
    tried, control = drawn(page.locator("#interventions figure"))
    assert (tried["y"], tried["x"]) == (["mean query", "mean key", "drift × 2"], [0.5, 0, 0.3])
    assert control["y"] == tried["y"]
    assert control["x"] == pytest.approx([0.1, 0, 0.06])


def test_variants_are_means_with_their_seeds(opened, file):
    page = opened(file)
    means, seeds = drawn(page.locator("#variants figure"))
    assert dict(zip(means["y"], means["x"], strict=True)) == {"softmax": 0.4, "gated": 0.2}
    assert len(seeds["x"]) == 6
    assert page.locator("#variants .panel tbody tr").inner_text().split("\t")[3] == "yes"


def test_files_of_vectors_are_bars_and_no_layers(opened, file):
    page = opened(file)
    bar = drawn(page.locator("#vectors figure").first)[0]
    assert dict(zip(bar["y"], bar["x"], strict=True))["vectors"] == 0.4
    names = [line["name"] for line in drawn(page.locator("#layers figure"))]
    assert "vectors" not in names


def test_rules_of_a_gate_stand_with_their_outcomes(opened, file):
    lines = opened(file).locator("#gate tbody tr").all_inner_texts()
    assert [line.split("\t")[0] for line in lines] == ["holds", "fails"]  # seen first on a phone


def test_two_clouds_show_what_they_share(opened, tmp_path):
    page = opened(write_page([report_runs.clouds_run(tmp_path / "run")], tmp_path / "page.html"))
    bar, chance = drawn(page.locator("#clouds figure"))
    assert (bar["x"], bar["y"][-1], chance["x"][-1]) == ([0.3, 0.3, 0.3, 0.5], "overlap of the top axes, 10", 0.1)


def test_any_two_of_the_page_are_compared(opened, file):
    page = opened(file)
    section = page.locator("#compare")
    cells = section.locator(".panel tbody tr").nth(4).locator("td").all_inner_texts()
    assert cells == ["block.4", "average cosine", "0.1", "0.14", "0.04", "0.025 … 0.055", "yes"]
    section.get_by_label("Comparison").select_option("free")
    section.get_by_label("Before", exact=True).select_option(label="org/alpha")
    section.get_by_label("After", exact=True).select_option(label="org/beta")
    assert "compare.pair=free" in page.url
    assert "undefined" not in page.url
    cells = section.locator(".panel tbody tr").last.locator("td").all_inner_texts()
    before, after, difference = (float(cell) for cell in cells[2:5])
    assert (cells[0], before, after, difference) == ("final_norm", 0.155, 0.26, 0.105)
    reach = 0.02 * 2**0.5  # two independent intervals of ±0.02
    assert [float(end) for end in cells[5].split(" … ")] == pytest.approx([0.105 - reach, 0.105 + reach], abs=1e-4)
    assert cells[6] == "yes"
    section.get_by_label("Before", exact=True).select_option(label="org/series, step 0")
    assert "compare.first=" in page.url
    section.get_by_label("After", exact=True).select_option(label="org/series, step 5,000")
    assert section.locator(".panel h3").inner_text() == "3 of 3 differences have an interval that excludes 0"


def test_fifty_runs_of_a_large_model_open(opened, tmp_path, capsys):
    """50 runs of 48 layers, one of them with 48 × 144 heads: the file can be mailed and the first screen is there."""
    runs = [report_runs.layers_run(tmp_path / f"run-{k}", (f"org/model-{k}",), layers=48) for k in range(49)]
    runs.append(report_runs.heads_run(tmp_path / "heads", layers=48, heads=144))
    path = write_page(runs, tmp_path / "page.html")
    assert path.stat().st_size < 20e6
    start = time.monotonic()
    page = opened(path)
    painted = page.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime")
    page.locator("#lead .main-svg").first.wait_for()
    with capsys.disabled():
        size, seconds = path.stat().st_size / 1e6, time.monotonic() - start
        print(f"\n50 runs: {size:.1f} MB, first paint {painted:.0f} ms, all sections filled {seconds:.1f} s")
    sync_api.expect(page.locator(".lead")).to_be_in_viewport()
    assert page.locator("#heads .main-svg").count() == 0  # drawn when it is scrolled to
    cells = drawn(page.locator("#heads figure"))[0]["z"]
    assert [len(cells), len(cells[0])] == [48, 144]


def test_every_chart_reads_as_a_table(opened, file):
    page = opened(file)
    chart = figure(page, "Difference in average cosine")
    drawn(chart)
    assert "3 of 5 sites differ" in chart.locator(".plot").get_attribute("aria-label")
    chart.get_by_text("Data as a table").click()
    sync_api.expect(chart.locator("tbody tr")).to_have_count(5)  # made when it is opened
    assert page.locator("figure:not(:has(details))").count() == 0


def test_parts_of_blocks_stand_at_their_blocks_which_are_named(opened, tmp_path):
    rows = []
    for k, site in enumerate(["embeddings", "block.0", "block.1", "block.2"]):
        rows += report_runs.site_rows("m", site, k - 1 if k else None, 0.1 * k)
        for part in ("attention", "mlp") if k else ():
            rows += report_runs.site_rows("m", f"{site}.{part}", None, 0.5 + 0.1 * k)
    tests = {"model": "m", "site": "layers", "n": 4}
    for end, value in (("", 1.0), ("_p", 0.083), ("_p_asymptotic", 0.0)):
        rows.append(Row(metric=f"spearman_drift_ratio{end}", value=value, **tests))
    run = write_run(tmp_path / "run", command="measure", settings={}, rows=rows, protocol={})
    page = opened(write_page([run], tmp_path / "page.html"), at="#layers")
    chart = figure(page, "Average cosine")
    lines = {line["name"]: line["x"] for line in drawn(chart) if line["mode"] == "lines+markers"}
    assert lines == {"m": [0, 1, 2, 3], "m, attention": [1, 2, 3], "m, mlp": [1, 2, 3]}
    assert chart.locator(".xtick text").all_text_contents() == ["emb.", "0", "1", "2"]
    assert "< 0.083" in page.locator("#drift table").last.inner_text()
