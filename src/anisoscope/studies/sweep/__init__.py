"""Hidden states and attention along a series of training checkpoints.

One pass for each checkpoint over the same tokens, hidden states and attention together. While a checkpoint runs, the
next is opened by another thread. Finished checkpoints stay on disk, so a killed sweep loses at most the batches since
the last saving. A checkpoint that is missing or broken is listed in the notes, and the sweep continues; so are those
whose weights look wrong (`models.checkpoints.suspicious`) or that saw other tokens. What runs over all steps at the
end, the planes of queries and keys, is in `dynamics`.
"""

from __future__ import annotations

from typing import Literal

from anisoscope.runs.job import Job
from anisoscope.runs.settings import Data, Dtype, Embedding, Excerpts, Seeds, Spectrum, option
from anisoscope.runs.study import Findings, Study
from anisoscope.runs.work.collected import Collected
from anisoscope.studies.attention import Heads
from anisoscope.studies.sweep.story import story

Part = Literal["hidden", "attention", "vocabulary", "logits", "embedding"]


class SweepSettings(Data, Heads, Embedding, Excerpts):
    """What `anisoscope sweep` is asked."""

    series: str = option(
        "multiberts, a Pythia model, a folder of checkpoint-* or seed-*/checkpoint-*, a glob in quotes, a TOML list of "
        "[[checkpoints]], or `embedded`.",
        argument=True,
        paths=True,
    )
    steps: str = option("all, paper, log, a count (21: evenly over the training), or a list: 0,1000,20k.", "all")
    seeds: Seeds | None = option("Which seeds of the series: 0-4 or 0,2.", None)
    sites: list[Part] = option("What to look at.", ["hidden", "attention"], min_length=1)
    specials: Literal["keep", "drop"] = option("Special tokens in hidden states: keep or drop.", "keep")
    parts: bool = option(
        "Also measure what attention and MLP of each block add (block.3.attention, block.3.mlp).", False
    )
    spectrum: Spectrum = option("Sites whose covariance spectrum is measured: all, every:4, last or none.", "none")
    dtype: Dtype = option("Precision of the models.", "float32")


def collect(job: Job) -> Collected:
    """One pass for each checkpoint."""
    from anisoscope.studies.sweep.checkpoints import collect_series

    return collect_series(job)


def conclude(settings: SweepSettings, collected: Collected) -> Findings:
    """Rows of every checkpoint, the planes of each seed, and notes."""
    from anisoscope.studies.sweep.checkpoints import conclude_series

    return conclude_series(settings, collected)


def labels(settings: SweepSettings) -> list[str]:
    """The checkpoints of the series."""
    from anisoscope.studies.sweep.checkpoints import find_series, label_of

    return [label_of(checkpoint) for checkpoint in find_series(settings).checkpoints]


STUDY = Study(
    SweepSettings,
    collect=collect,
    conclude=conclude,
    labels=labels,
    story=story,
    subject=lambda settings: settings.series.rpartition("/")[2],
    keeps_sums=False,
    help="""
Follow a training: hidden states, queries, keys and attention at every checkpoint, over the same tokens.

Missing checkpoints are listed and skipped; identical or misplaced ones are pointed out. A killed sweep
continues with the batch it was at when the same command is given again.

Examples:
  anisoscope sweep embedded
  anisoscope sweep multiberts --seeds 0-4 --data wikitext/valid.txt --limit 128
  anisoscope sweep EleutherAI/pythia-70m --steps 21 --sites hidden,vocabulary
  anisoscope sweep ./my-training --steps log
  anisoscope sweep 'runs/*/checkpoint-*'
""",
)
