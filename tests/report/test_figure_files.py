"""The files of a figure are whole or not there."""

from __future__ import annotations

import io
import re
import zlib
from pathlib import Path

import matplotlib.pyplot as plt
import pytest
from fontTools.ttLib import TTFont
from matplotlib.figure import Figure
from matplotlib.font_manager import findfont

from anisoscope.report.figures.style import save, style


def test_a_figure_that_was_not_written_to_its_end_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = Figure.savefig

    def stopped(figure: Figure, path: Path, **options: object) -> None:
        write(figure, path, **options)
        if options["format"] == "png":
            Path(path).write_bytes(Path(path).read_bytes()[:100])
            raise KeyboardInterrupt

    monkeypatch.setattr(Figure, "savefig", stopped)
    with pytest.raises(KeyboardInterrupt):
        save(plt.figure(), tmp_path, "layers")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["layers.pdf", "layers.svg"]
    monkeypatch.undo()
    save(plt.figure(), tmp_path, "layers")
    assert (tmp_path / "layers.png").stat().st_size > 1000


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("name", ["$x^$", "a$\\foo$b", "$$", "日本語", "\x1b[31m", "x" * 400])
def test_a_name_is_drawn_whatever_it_is(name: str, tmp_path: Path) -> None:
    with style():
        figure, axes = plt.subplots(layout="constrained")
        axes.set(title=name, ylabel=name)
        axes.set_yticks([0, 1], ["$x^2$", name])
        figure.text(0, 0, name)
    (path,) = save(figure, tmp_path, "named", formats=("pdf",))
    assert path.stat().st_size > 1000


def test_the_font_in_a_pdf_has_the_outlines_of_its_letters_and_little_else(tmp_path: Path) -> None:
    figure, words = plt.figure(), "drift ▲ ä ∞"
    figure.text(0.1, 0.5, words, family="DejaVu Sans")
    (path,) = save(figure, tmp_path, "words", formats=("pdf",))
    streams = re.findall(rb"stream\r?\n(.*?)\r?\nendstream", path.read_bytes(), re.DOTALL)
    files = [data for packed in streams if (data := zlib.decompress(packed))[:4] == b"\0\1\0\0"]
    fonts, whole = [TTFont(io.BytesIO(data)) for data in files], TTFont(findfont("DejaVu Sans"))
    assert not any(tag in font for font in fonts for tag in ("GPOS", "GSUB", "GDEF", "kern", "name"))
    drawn = [outline(font, name) for font in fonts for name in font.getGlyphOrder()]
    for letter in words.replace(" ", ""):
        assert outline(whole, whole.getBestCmap()[ord(letter)]) in drawn, letter


def outline(font: TTFont, name: str) -> list[tuple[int, int]]:
    return list(font["glyf"][name].getCoordinates(font["glyf"])[0])
