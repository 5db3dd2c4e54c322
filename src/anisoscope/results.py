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
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from anisoscope.runs.finding import entries
from anisoscope.runs.measurement import Measurement, sentence_of
from anisoscope.runs.store import Existing, Run, checked_existing, find_existing, remove_run
from anisoscope.runs.story import Table
from anisoscope.runs.study import find_study, study_of

_SHOWN = 24  # lines of a table in a notebook


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
        """Keep it as a run folder, with everything it holds; `existing="replace"` for a folder that holds a run."""
        whole = self if self.run is None else replace(self, arrays=self.run.arrays(), state=self.run.state())
        find_existing(Path(folder), command=self.command, settings=self.settings, existing=checked_existing(existing))
        if existing == "replace":
            remove_run(Path(folder))
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
        """For notebooks, what `show` prints: the sentence, the study's own tables, the notes."""
        from anisoscope.report.terminal import story_of

        known = entries().get(self.command)
        story = story_of(find_study(self.command) if known else None, self)
        tables = [(table, table.cells[:_SHOWN]) for table in story.tables]
        left = sum(len(table.cells) for table in (*story.tables, *story.more)) - sum(len(cells) for _, cells in tables)
        more = f"<p>{left} more lines: .show(everything=True), or .table()</p>" if left else ""
        said = "".join(f"<p>{html.escape(line)}</p>" for line in (*story.lines, *self.notes))
        shown = "".join(_table(table, cells) for table, cells in tables)
        return f"<p><b>{html.escape(sentence_of(self.verdict))}</b></p>{shown}{said}{more}"


def _table(table: Table, cells: Sequence[Sequence[str]]) -> str:
    def line(tag: str, texts: Sequence[str]) -> str:
        return "<tr>" + "".join(f"<{tag}>{html.escape(text)}</{tag}>" for text in texts) + "</tr>"

    body = "".join(line("td", texts) for texts in cells)
    title = f"<p>{html.escape(table.title)}</p>" if table.title else ""
    return f"{title}<table><thead>{line('th', table.columns)}</thead><tbody>{body}</tbody></table>"
