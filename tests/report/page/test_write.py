"""The page as a file: what it holds is what the runs hold, names are escaped, nothing points outside."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser

import numpy as np
import pytest

import report_runs
from anisoscope.cli.report import report
from anisoscope.errors import StoreError, UsageError
from anisoscope.report.page.data import find_subjects, page_data, run_labels
from anisoscope.report.page.summary import cards, lead
from anisoscope.report.page.write import page_html, write_page
from anisoscope.runs.store import write_run
from anisoscope.runs.table import COLUMNS, Row
from anisoscope.studies.vectors import measure_vectors

HOSTILE = ("<script>alert(1)</script>", "</script><img src=x onerror=alert(2)>", "{{data}} & \"quoted\" 'x'")


class Elements(HTMLParser):
    """What a browser would see: elements with their attributes, and the text outside of scripts and styles."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.text, self.scripts, self._inside = "", [], ""
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))
        self._inside = tag
        if tag == "script":
            self.scripts.append("")

    def handle_endtag(self, tag):
        self._inside = ""

    def handle_data(self, data):
        if self._inside == "script":
            self.scripts[-1] += data
        elif self._inside != "style":
            self.text += data


def unfold(column):
    """The inverse of the columns of the page, written apart from the page's own script."""
    values = column.get("plain")
    if values is None:
        flat = column["pairs"]
        values = [value for value, count in zip(flat[::2], flat[1::2], strict=True) for _ in range(count)]
    return [column["words"][code] for code in values] if "words" in column else values


def block_of(text: str):
    return json.loads(Elements(text).scripts[0])


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    return report_runs.every_run(tmp_path_factory.mktemp("runs"))


@pytest.fixture(scope="module")
def text(runs):
    return page_html(runs)


def test_every_measurement_is_in_the_page(runs, text):
    data = block_of(text)
    columns = {name: unfold(column) for name, column in data["columns"].items()}
    rows = [row for run in runs for row in run.rows()]
    assert {len(column) for column in columns.values()} == {len(rows)}
    owners = [data["subjects"][k] for k in columns["subject"]]
    assert [owner["model"] for owner in owners] == [row.model for row in rows]
    assert [data["runs"][owner["run"]]["label"] for owner in owners] == [row.run for row in rows]
    for name in set(COLUMNS) - {"run", "model"}:
        for told, row in zip(columns[name], rows, strict=True):
            meant = getattr(row, name)
            if isinstance(meant, float):
                assert told == pytest.approx(meant, rel=1e-5)
            else:
                assert told == ("" if name == "revision" and meant is None else meant)


def test_what_is_missing_or_not_finite_stays_missing(tmp_path):
    rows = [
        Row(site="a", metric="m", value=float("nan")),
        Row(site="b", metric="m", value=0.0),
        Row(site="c", metric="m"),
    ]
    run = write_run(tmp_path / "r", command="measure", settings={}, rows=rows, protocol={})
    assert unfold(page_data([run])["columns"]["value"]) == [None, 0, None]


@pytest.mark.parametrize("name", HOSTILE)
def test_names_are_text_wherever_they_stand(tmp_path, name):
    run = report_runs.layers_run(tmp_path / "run", (name, "plain"), layers=2)
    page = Elements(page_html([run], title=name))
    tags = [tag for tag, _ in page.found]
    assert tags.count("script") == 3
    assert "img" not in tags
    assert not any(attribute.startswith("on") for _, attributes in page.found for attribute in attributes)
    assert page.text.count(name) >= 3  # heading, card, provenance
    assert [s["model"] for s in json.loads(page.scripts[0])["subjects"]] == [name, "plain"]


def test_nothing_points_outside_of_the_file(text):
    page = Elements(text)
    addresses = [value for _, attributes in page.found for key, value in attributes.items() if key in ("src", "href")]
    assert addresses
    assert all(address.startswith(("#", "data:")) for address in addresses)
    policy = next(a["content"] for t, a in page.found if t == "meta" and a.get("http-equiv"))
    assert policy.startswith("default-src 'none'")
    assert "http" not in policy


def test_the_page_can_be_mailed(text):
    assert len(text.encode()) < 8e6
    assert text.count("plotly.js v") == 1


def test_a_page_needs_runs_and_a_place(tmp_path, runs):
    with pytest.raises(UsageError, match="at least one run"):
        write_page([], tmp_path / "x.html")
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="cannot be written"):
        write_page(runs[:1], tmp_path / "file" / "x.html")


def test_runs_of_the_same_name_are_told_apart(tmp_path):
    first, second = (report_runs.null_run(tmp_path / parent / "run") for parent in ("a", "b"))
    assert run_labels([first, second]) == ["a/run", "b/run"]
    assert run_labels([first]) == ["run"]
    assert len(run_labels([first, first])) == 2


def test_a_model_keeps_its_colour_in_every_run(tmp_path):
    first = report_runs.layers_run(tmp_path / "first", ("a", "b"), layers=1)
    second = report_runs.layers_run(tmp_path / "second", ("b", "c"), layers=1)
    a, b, again, c = find_subjects([first, second], ["first", "second"])
    assert b.colour == again.colour
    assert len({a.colour, b.colour, c.colour}) == 3
    assert (b.dash, again.dash) == ("solid", "dash")
    assert (a.label, b.label, again.label) == ("a", "b · first", "b · second")


def test_a_card_says_verdict_kind_worst_and_best_site(tmp_path):
    run = report_runs.layers_run(tmp_path / "run", layers=6)
    labels = run_labels([run])
    found = cards([run], labels, find_subjects([run], labels))
    alpha, beta = found
    assert alpha.verdict == "weakly anisotropic at 4 of 8 sites"
    assert beta.kinds == (("drifted", 6), ("weakly anisotropic", 2))
    assert (beta.highest.site, beta.lowest.site) == ("final_norm", "embeddings")
    assert lead(found).startswith("2 of 2 show drift. The average cosine reaches 0.26 at final_norm of org/beta")


def test_a_series_is_judged_by_its_last_step(tmp_path):
    run = report_runs.series_run(tmp_path / "run", steps=(0, 700))
    (card,) = cards([run], ["run"], find_subjects([run], ["run"]))
    assert card.title == "org/series, step 700"
    assert {row.step for row in card.cosines} == {700}


def test_summary_and_provenance_read_without_scripts(runs, text):
    told = Elements(text).text
    assert "Drifted at all sites" in told or "drifted at all sites" in told
    assert "fingerprint" in told
    assert "one window was short" in told
    assert 'command = "measure"' in told  # the plan that makes the run again


def test_eigenvalues_are_those_of_the_vectors(tmp_path):
    x = np.random.default_rng(0).standard_normal((500, 12)) * np.arange(1, 13) + 3.0
    run = measure_vectors(x, neighbours=False).save(tmp_path / "run")
    (picture,) = page_data([run])["pictures"]["eigenvalues"]
    values = np.linalg.eigvalsh(np.cov(x.T))[::-1]
    assert picture["site"] == "vectors"
    assert picture["ranks"] == list(range(1, 13))
    assert picture["shares"] == pytest.approx(values / values.sum(), rel=1e-3)


def test_score_histograms_of_draws_average_to_a_density(tmp_path):
    run = report_runs.block_run(tmp_path / "run")
    (picture,) = page_data([run])["pictures"]["scores"]
    assert picture["norms"] == [0, 1, 10, 40]
    for curve in picture["curves"]:
        width = curve["x"][1] - curve["x"][0]
        assert sum(curve["y"]) * width == pytest.approx(1, abs=0.01)


def test_clouds_are_thinned_until_they_fit(tmp_path, monkeypatch):
    run = report_runs.series_run(tmp_path / "run")
    whole = page_data([run])["pictures"]["planes"]
    assert len(whole) == 3
    assert np.shape(whole[0]["query_points"]) == (4, 4, 30, 2)
    monkeypatch.setattr("anisoscope.report.page_arrays.MOST_POINTS", 3 * 4 * 4 * 10 * 2 * 2)
    assert np.shape(page_data([run])["pictures"]["planes"][0]["query_points"]) == (4, 4, 10, 2)
    monkeypatch.setattr("anisoscope.report.page_arrays.MOST_POINTS", 10)
    thinned = page_data([run])["pictures"]["planes"][0]
    assert thinned["query_points"] is None
    assert thinned["query"] == whole[0]["query"]  # the paths stay


def test_the_command_writes_the_page_and_says_where(tmp_path, capsys):
    run = report_runs.null_run(tmp_path / "run")
    report([run.folder], out=tmp_path / "deep" / "page.html", title="A title")
    assert re.fullmatch(r"page: .*page\.html \(\d\.\d MB\)\n", capsys.readouterr().out)
    assert "<title>A title · anisoscope</title>" in (tmp_path / "deep" / "page.html").read_text(encoding="utf-8")
    report([run.folder], out=tmp_path / "page.html", json=True)
    told = json.loads(capsys.readouterr().out)
    assert told["bytes"] == (tmp_path / "page.html").stat().st_size
