"""The page as a file: what it holds is what the runs hold, names are escaped, nothing points outside."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from html import escape
from html.parser import HTMLParser

import pytest

import report_runs
from anisoscope.cli.commands.report import report
from anisoscope.errors import StoreError, UsageError
from anisoscope.report.page.data import find_subjects, page_data, run_labels
from anisoscope.report.page.lead import lead
from anisoscope.report.page.write import page_html, write_page
from anisoscope.runs.measurement import verdict_of
from anisoscope.runs.store import write_run
from anisoscope.runs.table import COLUMNS, Row

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
    assert "unsafe" not in policy


def test_the_policy_names_what_runs_and_nothing_else(text):
    """The hashes are computed here from what stands in the file, as a browser does it."""
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', text)[1]
    allowed = {name: set(sources) for name, *sources in (part.split() for part in policy.split("; "))}
    digest = lambda part: f"'sha256-{base64.b64encode(hashlib.sha256(part.encode()).digest()).decode()}'"  # noqa: E731
    _, plotly, own = re.findall(r"<script[^>]*>(.*?)</script>", text, re.DOTALL)
    (style,) = re.findall(r"<style>(.*?)</style>", text, re.DOTALL)
    assert allowed["script-src"] == {digest(own), digest(plotly)}
    assert allowed["style-src"] == {digest(style), digest("")}
    assert " style=" not in text.split("<script")[0]


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


def test_a_folder_that_a_command_named_is_called_after_its_subject(tmp_path):
    null = report_runs.null_run(tmp_path / "null-words.npy-0123abcd")
    vectors = report_runs.vectors_run(tmp_path / "vectors-words.npy-89abcdef")
    own = report_runs.vectors_run(tmp_path / "vectors-words.npy-mine")
    assert run_labels([vectors, own]) == ["words.npy", "vectors-words.npy-mine"]
    assert run_labels([null, vectors]) == ["null-words.npy", "vectors-words.npy"]
    page = page_html([vectors])
    assert '<h1 id="summary-title">words.npy</h1>' in page
    assert "vectors-words.npy-89abcdef" in Elements(page).text  # in the provenance


def test_a_run_that_is_called_like_its_model_is_not_named_twice(tmp_path):
    made = report_runs.layers_run(tmp_path / "measure-a-0123abcd", ("a",), layers=1)
    named = report_runs.layers_run(tmp_path / "mine", ("a",), layers=1)
    labels = run_labels([made, named])
    assert [subject.label for subject in find_subjects([made, named], labels)] == ["a", "a · mine"]


def test_a_lone_card_does_not_repeat_the_sentence_above_it(tmp_path):
    run = report_runs.advise_run(tmp_path / "run")
    said = verdict_of(run)
    summary = page_html([run]).partition('<section id="provenance"')[0]
    assert summary.count(escape(said.rstrip("."))) == 1
    both = page_html([run, report_runs.null_run(tmp_path / "null")]).partition('<section id="provenance"')[0]
    assert both.count(escape(said.rstrip("."))) == 2


def test_the_page_opens_with_two_sentences_at_most_and_the_card_says_the_rest(tmp_path):
    said = "Unrelated pairs have cosine 0.37. Whitening lowers it to 0.31. Beware: it rises with centring (0.80)."
    run = write_run(tmp_path / "run", command="calibrate", settings={}, protocol={}, verdict=said, rows=[])
    assert lead([run], ["run"], []) == said.partition(" Beware")[0]
    assert escape(said) in page_html([run])


def test_a_model_keeps_its_colour_in_every_run(tmp_path):
    first = report_runs.layers_run(tmp_path / "first", ("a", "b"), layers=1)
    second = report_runs.layers_run(tmp_path / "second", ("b", "c"), layers=1)
    a, b, again, c = find_subjects([first, second], ["first", "second"])
    assert b.colour == again.colour
    assert len({a.colour, b.colour, c.colour}) == 3
    assert (b.dash, again.dash) == ("solid", "dash")
    assert (a.label, b.label, again.label) == ("a", "b · first", "b · second")


def test_summary_and_provenance_read_without_scripts(runs, text):
    told = Elements(text).text
    assert re.search(r"drifted at (all|\d+ of) \d+ sites", told)
    assert "fingerprint" in told
    assert "one window was short" in told
    assert 'command = "measure"' in told  # the plan that makes the run again


def test_the_command_writes_the_page_and_says_where(tmp_path, capsys):
    run = report_runs.null_run(tmp_path / "run")
    report([run.folder], out=tmp_path / "deep" / "page.html", title="A title")
    assert re.fullmatch(r"page: .*page\.html \(\d\.\d MB\)\n", capsys.readouterr().out)
    assert "<title>A title · anisoscope</title>" in (tmp_path / "deep" / "page.html").read_text(encoding="utf-8")
    report([run.folder], out=tmp_path / "page.html", json=True)
    told = json.loads(capsys.readouterr().out)
    assert told["bytes"] == (tmp_path / "page.html").stat().st_size
