"""One browser for all tests of a file, a page of one run of each kind, and a visit that fails on any complaint."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import report_runs
from anisoscope.report.page.write import write_page


@pytest.fixture(scope="module")
def browser():
    from browser_page import CHROMIUM, FLAGS, sync_api

    with sync_api.sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=str(CHROMIUM), args=list(FLAGS))
        yield opened
        opened.close()


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    folder = tmp_path_factory.mktemp("page")
    return write_page(report_runs.every_run(folder / "runs"), folder / "report.html")


@pytest.fixture(scope="module")
def pages(browser, tmp_path_factory):
    """The n-th page of every test, and where its file goes: at one address Chromium compiles the scripts only once."""
    made, folder = [], tmp_path_factory.mktemp("visited")

    def page_of(number: int):
        while len(made) <= number:
            page = browser.new_context().new_page()
            page.set_default_timeout(300_000)
            made.append(page)
        return made[number], folder / f"{number}.html"

    yield page_of
    for page in made:
        page.context.close()


@pytest.fixture
def opened(pages):
    """Open a file as on the first day; whatever went wrong in the page fails the test at its end."""
    visited, wrong, asked = [], [], []
    heard = {
        "console": lambda message: wrong.append(message.text),
        "pageerror": lambda error: wrong.append(str(error)),
        "dialog": lambda dialog: (wrong.append(f"dialog: {dialog.message}"), dialog.dismiss()),
        "request": lambda request: asked.append(request.url),
    }

    def visit(path: Path, *, at: str = "", width: int = 1280, color_scheme: str = "light"):
        page, place = pages(len(visited))
        visited.append(page)
        shutil.copy(path, place)
        page.set_viewport_size({"width": width, "height": 900})
        page.emulate_media(color_scheme=color_scheme, reduced_motion="reduce")
        for event, hear in heard.items():
            page.on(event, hear)
        page.goto(f"{place.as_uri()}{at}")
        # sections are filled while the reader looks at the first screen
        page.locator("#table tbody tr").first.wait_for()
        return page

    yield visit
    for page in visited:
        page.evaluate("localStorage.clear()")
        for event, hear in heard.items():
            page.remove_listener(event, hear)
        page.mouse.move(0, 0)
        page.goto("about:blank")
    assert wrong == []
    assert [url for url in asked if not url.startswith(("file:", "data:", "blob:"))] == []
