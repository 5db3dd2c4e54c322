"""What advice says of bits, dimensions and centring; then the tables, and how good the forecast was."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from anisoscope.geometry.codes import CODES
from anisoscope.runs.story import Story, Table, number, percent
from anisoscope.runs.table import Row

Cells = Mapping[tuple[str, int, str], Row]
_WORDS = {"raw": "as they are", "centred": "centred", "whitened": "whitened"}
_BITS = {"int8": "8 bits", "int4": "4 bits", "binary": "signs alone"}


def cells_of(rows: Sequence[Row]) -> dict[tuple[str, int, str], Row]:
    """Rows by site, dimensions and metric."""
    return {(row.site, int(row.at), row.metric): row for row in rows if row.at is not None}


def advice(rows: Sequence[Row]) -> str:
    """Bits at all dimensions, dimensions at full precision, what centring keeps, and what labelled queries say."""
    cells = cells_of(rows)
    whole = max(dims for _, dims, _ in cells)
    kept = "; ".join(filter(None, (_on_bits(cells, whole), _on_dimensions(cells, whole), _on_centring(cells, whole))))
    return " ".join([f"{kept}.", *_on_search(rows, whole)])


def _overlap(cells: Cells, site: str, dims: int) -> float:
    row = cells.get((site, dims, "neighbour_overlap"))
    return float("nan") if row is None or row.value is None else row.value


def _on_bits(cells: Cells, whole: int) -> str:
    kept = {name: percent(_overlap(cells, f"raw.{code}", whole)) for code, name in _BITS.items()}
    others = ", ".join(f"{name} {share}" for name, share in kept.items() if name != "8 bits")
    return f"8 bits keep {kept['8 bits']} of the ten nearest neighbours, {others}"


def _on_dimensions(cells: Cells, whole: int) -> str:
    """What the half, or whatever is next to it, keeps: leading dimensions and principal ones."""
    fewer = sorted({dims for _, dims, _ in cells if dims < whole}, key=lambda dims: abs(dims - whole / 2))
    if not fewer:
        return ""
    leading, principal = (percent(_overlap(cells, f"{site}.float32", fewer[0])) for site in ("raw", "centred"))
    return f"the first {fewer[0]} of {whole} dimensions keep {leading}, the principal ones {principal}"


def _on_centring(cells: Cells, whole: int) -> str:
    return f"centring keeps {percent(_overlap(cells, 'centred.float32', whole))}"


def _on_search(rows: Sequence[Row], whole: int) -> list[str]:
    """The cheapest variant that labelled queries do not show to be worse."""
    found = [row for row in rows if row.metric == "ndcg_difference" and row.high is not None and row.at is not None]
    fine = [row for row in found if (row.high or 0.0) >= 0]
    if not found:
        return []
    before = next(row.value for row in rows if row.metric == "ndcg" and row.site == "raw.float32" and row.at == whole)
    if not fine:
        return [f"nDCG@10 is {before:.3f} as they are, and every variant costs some of it."]
    best = min(fine, key=lambda row: (row.at or 0) * CODES[row.site.partition(".")[2]])
    name, _, code = best.site.partition(".")
    words = f"{best.at:.0f} dimensions in {code}, {_WORDS[name]}"
    return [f"nDCG@10 is {before:.3f} as they are; the smallest that is not shown to lose any: {words}."]


def _on_forecast(rows: Sequence[Row]) -> str:
    value = {row.metric: row.value for row in rows if row.site == "forecast"}
    error, bias = value["forecast_error"] or 0.0, value["forecast_bias"] or 0.0
    way = "" if abs(bias) < 0.9 * error or error < 0.005 else " too low" if bias < 0 else " too high"
    ranked = f"; it ranks the variants with a correlation of {value['forecast_rank']:.2f}" if way else ""
    off = f"{error:.2f}{way}" if way else f"off by {error:.2f}"
    return f"forecast from mean and covariance: {off} on average, {value['forecast_worst']:.2f} at most{ranked}"


def story(rows: Sequence[Row]) -> Story:
    """One line for each correction and number of dimensions: what every code keeps, beside the forecast."""
    cells = cells_of(rows)
    codes = [code for code in CODES if any(site.endswith(f".{code}") for site, _, _ in cells)]
    lines = dict.fromkeys((site.partition(".")[0], dims) for site, dims, _ in cells)
    body = [
        [_WORDS[name], str(dims), *(_cell(cells, f"{name}.{code}", dims) for code in codes)] for name, dims in lines
    ]
    caption = (
        "Share of the ten nearest neighbours that stays (in brackets: forecast). As they are: the first dimensions."
    )
    tables = [Table(("", "dims", *codes), body, caption=caption), _memory(cells, codes)]
    if any(row.metric == "ndcg" for row in rows):
        tables.append(_search(cells, codes, lines))
    return Story(tables, [_on_forecast(rows)], more=[_intervals(rows)])


def _cell(cells: Cells, site: str, dims: int) -> str:
    foretold = cells.get((site, dims, "overlap_forecast"))
    beside = "" if foretold is None or foretold.value is None else f" ({foretold.value:.2f})"
    return f"{_overlap(cells, site, dims):.2f}{beside}"


def _memory(cells: Cells, codes: Sequence[str]) -> Table:
    body = []
    for dims in dict.fromkeys(dims for _, dims, _ in cells):
        found = [(cells[f"raw.{c}", dims, "memory_per_million"], cells[f"raw.{c}", dims, "bytes_saved"]) for c in codes]
        body.append([str(dims), *(f"{number(size.value)} ({_three(less.value)}×)" for size, less in found)])
    caption = "GB for a million vectors (how many times fewer bytes are stored, and read by a full search)."
    return Table(("dims", *codes), body, caption=caption)


def _three(value: float | None) -> str:
    return number(None if value is None else float(f"{value:.3g}"))


def _search(cells: Cells, codes: Sequence[str], lines: Mapping[tuple[str, int], None]) -> Table:
    body = [
        [_WORDS[name], str(dims), *(number(cells[f"{name}.{code}", dims, "ndcg"].value) for code in codes)]
        for name, dims in lines
    ]
    return Table(("nDCG@10", "dims", *codes), body)


def _intervals(rows: Sequence[Row]) -> Table:
    from anisoscope.runs.story import interval

    found = [row for row in rows if row.metric in ("neighbour_overlap", "ndcg_difference") and row.low is not None]
    body = [[row.site, f"{row.at:.0f}", row.metric, number(row.value), interval(row)] for row in found]
    return Table(("", "dims", "metric", "value", "95 % interval"), body)
