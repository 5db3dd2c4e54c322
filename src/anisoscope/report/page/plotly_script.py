"""The plotting library of the plotly package, as the page's content security policy lets it run.

A policy without 'unsafe-inline' forbids style attributes and unknown style elements, and allows the same through the
style object of an element. Plotly asks for the former in two places, which are rewritten:

- `selection.attr("style", text)` becomes `selection.property("style", text)`, which sets the same style;
- the style sheet of its maps, which the page does not use, becomes empty.
"""

from __future__ import annotations

import re
from functools import cache
from importlib import resources

_MAPS = re.compile(r"""(createElement\("style"\);\w+\.id="[0-9a-f]+",\w+\.textContent=)'(?:[^'\\]|\\.)*'""")


@cache
def plotly_script() -> str:
    """The text of the library, safe to stand in a script element."""
    text = (resources.files("plotly") / "package_data" / "plotly.min.js").read_text(encoding="utf-8")
    text = _MAPS.sub(r'\1""', text).replace('.attr("style",', '.property("style",')
    return text.replace("</script", "<\\/script")
