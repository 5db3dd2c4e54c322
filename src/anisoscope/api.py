"""The public functions of the library: read this first.

    import anisoscope

    anisoscope.measure_vectors(x)                          # an array or tensor (n, d)
    anisoscope.measure("bert-base-uncased", texts)         # a model by name, or a module with its tokenizer
    anisoscope.compare(before, after)                      # two measurements or run folders
    anisoscope.calibrate("embeddings.npy")                 # similarity floor and thresholds
    anisoscope.open_run("anisoscope-runs/measure-…")       # whatever was kept

Each returns a `Measurement`: `.table()`, `.to_pandas()`, `.value(metric, site=…)`, `.save(folder)`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from anisoscope.runs.measurement import Measurement
from anisoscope.runs.store import Run, open_run
from anisoscope.studies.vectors import measure_vectors

if TYPE_CHECKING:
    from torch import nn

__all__ = ["Measurement", "Run", "calibrate", "compare", "measure", "measure_vectors", "open_run"]


def measure(
    model: str | Path | nn.Module,
    data: Any = None,
    *,
    processor: Any = None,
    out: str | Path | None = None,
    device: str = "cpu",
    batch_tokens: int | None = None,
    models_dir: str | Path | None = None,
    trust_remote_code: bool = False,
    **settings: Any,
) -> Measurement:
    """Measure every layer of a model.

    - `model`: a hub id, a folder, a GGUF file, or a module (then `processor` is its tokenizer or feature extractor).
    - `data`: what `inputs.open_source` takes: paths, a list of texts, clips or pictures; None for what is embedded.
    - `settings`: those of `anisoscope measure` (`sites`, `specials`, `maps`, `length`, `limit`, `spectrum`, …).
    - `out`: keep it as a run folder.
    """
    from anisoscope.inputs.sources import open_source
    from anisoscope.models.open import open_model
    from anisoscope.studies.measure.drift import drift_rows
    from anisoscope.studies.measure.study import Machine, MeasureSettings, measure_opened, verdict_line

    name = str(model) if isinstance(model, str | Path) else type(model).__name__
    chosen = MeasureSettings.check({"models": [name], **settings})
    opened = open_model(
        model, revision=chosen.revision, modality=chosen.modality, tower=chosen.tower, dtype=chosen.dtype,
        device=device, trust_remote_code=trust_remote_code, models_dir=models_dir, processor=processor,
    )  # fmt: skip
    options = {"documents": chosen.documents, "column": chosen.column} if opened.modality == "text" else {}
    source = open_source(data, opened.modality, **options)  # pyright: ignore[reportArgumentType]  # checked there
    machine = Machine(device, batch_tokens, None if models_dir is None else Path(models_dir), trust_remote_code)
    found = measure_opened(opened, source, chosen, machine)
    rows = [*found.rows, *drift_rows(found.rows)]
    measurement = Measurement(
        tuple(rows), verdict_line(rows), found.notes, None, chosen.command, chosen.as_dict(), {name: found.protocol},
        {name: found.data}, state=found.state(),
    )  # fmt: skip
    return measurement if out is None else Measurement.of_run(measurement.save(out, model={name: found.model}))


def compare(first: Measurement | Run | str | Path, second: Measurement | Run | str | Path) -> Measurement:
    """Second minus first, site by site, with intervals paired by sequence group where the data is the same."""
    from anisoscope.studies.compare import compare_runs

    with TemporaryDirectory() as folder:
        return compare_runs(_as_run(first, Path(folder) / "first"), _as_run(second, Path(folder) / "second"))


def _as_run(what: Measurement | Run | str | Path, folder: Path) -> Run:
    if isinstance(what, Run):
        return what
    if isinstance(what, Measurement):
        return what.run or what.save(folder)
    return open_run(what)


def calibrate(
    files: str | Path | Sequence[str | Path], *, out: str | Path | None = None, **settings: Any
) -> Measurement:
    """Similarity floor and thresholds of the embeddings in files; `settings` as of `anisoscope calibrate`."""
    from anisoscope.studies.calibrate import CalibrateSettings, calibrate_files

    several = [files] if isinstance(files, str | Path) else list(files)
    chosen = CalibrateSettings.check({"files": [str(file) for file in several], **settings})
    return calibrate_files(chosen, out=None if out is None else Path(out))
