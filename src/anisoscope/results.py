"""What the Python functions return: a measurement that can also show, plot and report itself.

result = anisoscope.measure("gpt2", texts)
result.show()                       # what the command prints
result.plot()                       # interactive, in a notebook
result.figures("figures/")          # for print: SVG, PDF, PNG
result.report("report.html")        # the page
result.markdown()                   # for a model card
result.table(), result.value("mean_cosine", site="block.3"), result.save("run")
"""

from __future__ import annotations

import html
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from anisoscope.runs.measurement import Measurement
from anisoscope.runs.store import Existing, Run, checked_existing, find_existing
from anisoscope.runs.study import study_of

_SHOWN = 60  # rows of the notebook's table


class Result(Measurement):
    """A measurement with its views."""

    def show(self, *, everything: bool = False) -> None:
        """Print what the command would print."""
        from anisoscope.report.terminal import tell

        with self._kept() as run:
            tell(study_of(run), self, everything=everything)

    def figures(self, folder: str | Path | None = None) -> list[Path]:
        """Draw the figures of the study as SVG, PDF and PNG; into the run's folder unless another is named."""
        from anisoscope.errors import UsageError
        from anisoscope.report.figures import draw

        if folder is None and self.run is None:
            raise UsageError("this measurement has no folder", do="name one: figures('folder')")
        with self._kept() as run:
            return draw(run, None if folder is None else Path(folder))

    def save(self, folder: str | Path, *, seconds: float | None = None, existing: Existing = "refuse") -> Run:
        """Keep it as a run folder, with all that it holds; `existing="replace"` for a folder that holds a run."""
        whole = self if self.run is None else self.changed(arrays=self.run.arrays(), state=self.run.state())
        find_existing(Path(folder), command=self.command, settings=self.settings, existing=checked_existing(existing))
        return Measurement.save(whole, folder, seconds=seconds)

    def plot(self, metric: str = "mean_cosine") -> Any:
        """One metric along the sites (or steps) as an interactive figure of plotly."""
        from anisoscope.report.plot import plot

        return plot(self.rows, metric)

    def report(self, path: str | Path = "report.html", *, title: str | None = None, force: bool = False) -> Path:
        """Write the page of this measurement; `force` overwrites a file of another kind."""
        from anisoscope.report.page.write import write_page
        from anisoscope.runs.writing import check_target

        check_target(Path(path), kind="page", force=force)
        with self._kept() as run:
            return write_page([run], Path(path), title=title)

    def markdown(self) -> str:
        """A section for a model card: findings, protocol, how to repeat it, citation."""
        from anisoscope.report.markdown import markdown

        with self._kept() as run:
            return markdown([run])

    @contextmanager
    def _kept(self) -> Iterator[Run]:
        """The run of this measurement, in a temporary folder where it has none."""
        if self.run is not None:
            yield self.run
            return
        with TemporaryDirectory() as folder:
            yield self.save(Path(folder) / self.command)

    def _repr_html_(self) -> str:
        """A small table for notebooks: the sentence, then metrics over all positions with interval and null."""
        sentence = self.verdict if isinstance(self.verdict, str) else self.verdict.sentence
        shown = [row for row in self.rows if row.positions == "all" and row.value is not None]
        cells = "".join(
            "<tr>" + "".join(f"<td>{html.escape(text)}</td>" for text in _cells(row)) + "</tr>"
            for row in shown[:_SHOWN]
        )
        head = "".join(f"<th>{name}</th>" for name in ("site", "metric", "value", "95 % interval", "null", "n"))
        more = f"<p>and {len(shown) - _SHOWN} more rows: .table()</p>" if len(shown) > _SHOWN else ""
        table = f"<table><thead><tr>{head}</tr></thead><tbody>{cells}</tbody></table>"
        return f"<p><b>{html.escape(sentence)}</b></p>{table}{more}"


def _cells(row: Any) -> tuple[str, ...]:
    from anisoscope.runs.story import interval, number

    null = "" if row.null is None else number(row.null)
    return row.site, row.metric, number(row.value), interval(row), null, str(row.n or "")
