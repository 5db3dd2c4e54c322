"""The notebooks of the documentation run from top to bottom, offline, and show what they promise."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

nbformat = pytest.importorskip("nbformat")
nbclient = pytest.importorskip("nbclient")
FOLDER = Path(__file__).parents[2] / "docs/notebooks"
PLOTLY, HTML, PNG = "application/vnd.plotly.v1+json", "text/html", "image/png"
SHOWS = {"embeddings": {HTML}, "model": {PLOTLY, PNG}, "training": {PLOTLY}}


def outputs(notebook: Any) -> list[Any]:
    return [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]


@pytest.mark.parametrize("name", SHOWS)
def test_a_notebook_runs_and_shows_its_results(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("PYTHONPATH", str(FOLDER.parents[1] / "src"))
    notebook = nbformat.read(FOLDER / f"{name}.ipynb", as_version=4)
    assert outputs(notebook) == [], "outputs are not kept in the file"
    nbclient.NotebookClient(
        notebook, timeout=600, kernel_name="python3", resources={"metadata": {"path": str(tmp_path)}}
    ).execute()
    shown: dict[str, Any] = {kind: data for one in outputs(notebook) for kind, data in one.get("data", {}).items()}
    assert SHOWS[name] <= set(shown)
    assert len(shown.get(HTML, "")) < 20_000 or PLOTLY in shown
    if PLOTLY in shown:
        line = max(shown[PLOTLY]["data"], key=lambda trace: max(trace["y"]))
        assert 0.9 < max(line["y"]) <= 1.0  # the collapse at step 64
    said = "".join(one.get("text", "") for one in outputs(notebook) if one.output_type == "stream")
    assert "Traceback" not in said
