"""One browser for all tests of the page, a page of one run of each kind, and a visit that fails on any complaint."""

from __future__ import annotations

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


@pytest.fixture
def opened(browser):
    """Open a page by address; whatever went wrong in it fails the test at its end."""
    contexts, wrong, asked = [], [], []

    def visit(path: Path, *, at: str = "", width: int = 1280, **options):
        context = browser.new_context(viewport={"width": width, "height": 900}, reduced_motion="reduce", **options)
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(300_000)
        page.on("console", lambda message: wrong.append(message.text))
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("dialog", lambda dialog: (wrong.append(f"dialog: {dialog.message}"), dialog.dismiss()))
        page.on("request", lambda request: asked.append(request.url))
        page.goto(f"{path.as_uri()}{at}")
        page.locator(
            "#table tbody tr"
        ).first.wait_for()  # sections are filled while the reader looks at the first screen
        return page

    yield visit
    for context in contexts:
        context.close()
    assert wrong == []
    assert [url for url in asked if not url.startswith(("file:", "data:", "blob:"))] == []
