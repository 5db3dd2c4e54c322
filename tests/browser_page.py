"""What the browser tests share: the browser's flags, and ways to read a chart."""

from __future__ import annotations

from pathlib import Path

import pytest

sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
CHROMIUM = Path("/usr/bin/chromium")
FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
HOSTILE = "<script>alert(1)</script>"
needs_chromium = [
    pytest.mark.browser,
    pytest.mark.skipif(not CHROMIUM.exists(), reason=f"there is no Chromium at {CHROMIUM}"),
]


def figure(page, title: str):
    return page.locator("figure", has=page.get_by_role("heading", name=title, exact=True))


def drawn(found):
    """The figure's lines as plotly holds them, once it is drawn."""
    found.scroll_into_view_if_needed()
    found.locator(".main-svg").first.wait_for()
    return found.locator(".plot").evaluate(
        "plot => plot.data.map(({name, x, y, z, mode, line, opacity}) => ({name, x, y, z, mode, line, opacity}))"
    )


def saved(page, button) -> tuple[str, bytes]:
    with page.expect_download() as waiting:
        button.click()
    return waiting.value.suggested_filename, Path(waiting.value.path()).read_bytes()
