"""How anisotropic each layer of a model is, of any modality.

One pass of each model over the data; every site is measured from its sums, then the drift tests run over the layers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from anisoscope.runs.job import Job
from anisoscope.runs.settings import Data, Embedding, Excerpts, Hidden, Models, Sample, option
from anisoscope.runs.study import Findings, Study
from anisoscope.runs.table import Row, is_embedding
from anisoscope.runs.work.collected import Collected
from anisoscope.studies.measure.story import story


class MeasureSettings(Models, Data, Hidden, Embedding, Sample, Excerpts):
    """What `anisoscope measure` is asked."""

    neighbours: bool = option("Measure neighbourhoods too (on a sample).", True)
    logits: bool = option("Measure the logits of the language-model head too.", False)


def collect(job: Job) -> Collected:
    """One pass for each model."""
    from anisoscope.studies.measure.hidden import observers, smaller_batches

    changes: dict[str, Any] = {"first": all(map(is_embedding, job.settings.sites))}
    return {
        label: job.run(
            label,
            model,
            lambda model=model: observers(model, job.settings, job.machine),
            **changes | (smaller_batches(model, job.machine) if job.settings.logits else {}),
        )
        for label, model in job.models(head=job.settings.logits)
    }


def conclude(settings: MeasureSettings, collected: Collected) -> Findings:
    """The rows of every site of every model, and the drift tests."""
    from anisoscope.studies.measure.drift import drift_rows
    from anisoscope.studies.measure.hidden import judge, site_rows

    rows: list[Row] = []
    notes: dict[str, list[str]] = {}
    verdicts: list[Mapping[str, Any]] = []
    for label, part in collected.items():
        found = site_rows(part, label, spectrum=settings.spectrum, neighbours=settings.neighbours)
        rows += found.rows
        verdicts += found.verdicts
        notes[label] = found.notes
    return Findings([*rows, *drift_rows(rows)], judge(verdicts), notes_of=notes, verdicts=verdicts)


STUDY = Study(
    MeasureSettings,
    collect=collect,
    conclude=conclude,
    story=story,
    help="""
How anisotropic each layer of a model is, of any modality, with intervals and nulls; then the drift tests.

To continue a killed run, give the same command again.

Examples:
  anisoscope measure bert-base-uncased --data wikitext/valid.txt
  anisoscope measure gpt2 EleutherAI/pythia-70m --data texts/ --limit 200
  anisoscope measure sentence-transformers/all-MiniLM-L6-v2 --sites embedding
  anisoscope measure gpt2 --pool mean
  anisoscope measure gpt2 --logits --parts
  anisoscope measure openai/whisper-base --data recordings/ --whisper-window all
  anisoscope measure microsoft/resnet-50 --data photos/ --maps flatten
  torchrun --nproc-per-node 2 -m anisoscope measure gpt2 --data texts/
""",
)
