"""What the terminal says about trainings side by side: the mean of each arm, then what it changes against the
control."""

from __future__ import annotations

from collections.abc import Sequence

from anisoscope.runs.story import Story, Table, number
from anisoscope.runs.table import Row

BLOCKS = "blocks"
"""The site of what is averaged over all blocks of a model."""

DIFFERENCE = "_difference"
"""What the name of a metric ends with where the value is an arm minus the control."""

COLUMNS = (
    ("", "validation_loss", "loss"),
    (BLOCKS, "mean_cosine", "cosine"),
    (BLOCKS, "entropy_normalised", "entropy"),
    (BLOCKS, "query_key_alignment", "|cos Q̄K̄|"),
    (BLOCKS, "max_probability", "max p"),
    (BLOCKS, "query_drift_ratio", "Q drift"),
    (BLOCKS, "isoscore", "IsoScore"),
)
"""The columns of the summary: site, metric, heading. The first four fit the screen with their intervals."""


def summary(rows: Sequence[Row]) -> dict[str, dict[str, Row]]:
    """For each arm the averages of the columns of the summary, and their differences from the control, by metric."""
    places = {(site, metric + end) for site, metric, _ in COLUMNS for end in ("", DIFFERENCE)}
    lines: dict[str, dict[str, Row]] = {}
    for row in rows:
        if row.seed is None and row.positions == "all" and (row.site, row.metric) in places:
            lines.setdefault(row.model, {})[row.metric] = row
    return lines


def story(rows: Sequence[Row]) -> Story:
    """Means over seeds, then differences from the control with 95 % intervals over seeds."""
    lines = summary(rows)
    if not lines:
        return Story()
    cells = {arm: [line.get(metric) for _, metric, _ in COLUMNS] for arm, line in lines.items()}
    body = [[arm, *(number(row.value if row else None) for row in found)] for arm, found in cells.items()]
    means = Table(("arm", *(heading for *_, heading in COLUMNS)), body, caption="means over blocks and seeds")
    changed = [(arm, line) for arm, line in lines.items() if any(name.endswith(DIFFERENCE) for name in line)]
    first = [[arm, *(_change(line, metric) for _, metric, _ in COLUMNS[:4])] for arm, line in changed]
    rest = [[arm, *(_change(line, metric) for _, metric, _ in COLUMNS[4:])] for arm, line in changed]
    control = next(iter(lines))
    known = any(row.high is not None for _, line in changed for row in line.values())
    title, caption = f"minus {control}", "95 % interval over seeds, paired" if known else "one seed: no intervals"
    tables = [Table(("arm", *(h for *_, h in COLUMNS[:4])), first, title=title, caption=caption)] if changed else []
    more = [Table(("arm", *(h for *_, h in COLUMNS[4:])), rest, title=title, caption=caption)] if changed else []
    return Story([means, *tables], more=more)


def _change(line: dict[str, Row], metric: str) -> str:
    """`-0.041 ± 0.012`."""
    row = line.get(f"{metric}{DIFFERENCE}")
    if row is None or row.value is None:
        return "–"
    reach = "" if row.high is None else f" ± {row.high - row.value:.3f}"
    return f"{row.value:+z.3f}{reach}"
