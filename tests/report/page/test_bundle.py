"""Modules joined into one script: order, names, and a clear refusal of what is not understood."""

from __future__ import annotations

from importlib import resources

import pytest

from anisoscope.errors import UsageError
from anisoscope.report.page.bundle import bundle
from anisoscope.report.page.write import script_text


def test_what_is_imported_runs_first_and_once():
    modules = {
        "core/a.js": 'import { b } from "./b.js";\nexport const a = b;\n',
        "core/b.js": "export const b = 1;\n",
        "sections/s.js": 'import { a } from "../core/a.js";\nimport {\n  b as other,\n} from "../core/b.js";\na();\n',
    }
    text = bundle(modules, ["sections/s.js", "core/a.js"])
    places = [text.index(f'modules["{name}"] = ') for name in ("core/b.js", "core/a.js", "sections/s.js")]
    assert places == sorted(places)
    assert text.count('modules["core/b.js"] = ') == 1
    assert 'const { b: other } = modules["core/b.js"];' in text
    assert "export" not in text
    assert "import" not in text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('import { x } from "./missing.js";\n', "not there"),
        ('import { a } from "./a.js";\n', "import each other"),
        ("export default 3;\n", "not understood"),
        ('import * as all from "./b.js";\n', "not understood"),
    ],
)
def test_what_is_not_understood_is_refused_when_the_page_is_written(text, message):
    with pytest.raises(UsageError, match=message):
        bundle({"core/a.js": text, "core/b.js": ""}, ["core/a.js"])


def test_the_scripts_of_the_page_hold_every_section_and_no_markup():
    text = script_text()
    assert text.count("register({") >= 15
    assert "</script" not in text
    assert "<!--" not in text
    assert "innerHTML" not in text


def test_no_line_of_an_asset_is_wider_than_120_columns():
    """The formatter breaks code but neither comments nor strings."""
    assets = resources.files("anisoscope.report.page") / "assets"
    files = [*(assets / "core").iterdir(), *(assets / "sections").iterdir(), assets / "page.css"]
    wide = [file.name for file in files for line in file.read_text(encoding="utf-8").splitlines() if len(line) > 120]
    assert wide == []
