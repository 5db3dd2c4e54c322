"""The picture of the README: the page that `anisoscope demo` writes, as Chromium shows it.

    python scripts/readme_picture.py               # runs the demo into demo/ (or uses the one there), then takes it
    python scripts/readme_picture.py --demo DIR

Writes docs/figures/demo.png, the top of the page with its first chart, and docs/figures/demo-layers.png, another chart.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from playwright.sync_api import Page, sync_playwright

from anisoscope.cli.main import app

FIGURES = Path(__file__).resolve().parents[1] / "docs" / "figures"
CHROMIUM = "/usr/bin/chromium"
FLAGS = ["--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking", "--disable-sync"]
WIDTH, HEIGHT = 1200, 820


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--demo", type=Path, default=Path("demo"), help="folder of the demo")
    demo = parser.parse_args().demo
    app(["demo", "--out", str(demo)], standalone_mode=False)  # finished runs are used again
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        context = browser.new_context(
            viewport={"width": WIDTH, "height": HEIGHT},
            color_scheme="light",
            reduced_motion="reduce",
            device_scale_factor=1.25,
        )
        page = context.new_page()
        page.goto((demo / "report.html").resolve().as_uri())
        take(page)
        browser.close()


def take(page: Page) -> None:
    """The top of the page down to its first chart, and the chart by layer."""
    page.wait_for_load_state("networkidle")
    first = page.locator("#summary figure").first.bounding_box()
    bottom = HEIGHT if first is None else first["y"] + first["height"] + 24
    page.screenshot(path=FIGURES / "demo.png", full_page=True, clip={"x": 0, "y": 0, "width": WIDTH, "height": bottom})
    chart = page.locator("#layers figure").first
    chart.scroll_into_view_if_needed()
    chart.locator(".main-svg").first.wait_for()
    page.wait_for_timeout(500)  # the lines are drawn after the frame
    chart.screenshot(path=FIGURES / "demo-layers.png")


if __name__ == "__main__":
    main()
