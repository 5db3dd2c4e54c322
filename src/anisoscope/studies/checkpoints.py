"""Checkpoints named one by one, in the order of training, each with its step.

A name is whatever `open_model` takes; `name@revision` names a revision of the hub or of a mirror. The step is read
from the name (`step1000`, `step_20k`, `checkpoint-500`) where every name has one, else it is the place in the order. A
single model is no series: its step is missing.

>>> steps_of(["EleutherAI/pythia-70m@step0", "EleutherAI/pythia-70m@step1000"])
[0, 1000]
>>> steps_of(["google/multiberts-seed_0-step_0k", "google/multiberts-seed_0-step_20k"])
[0, 20000]
>>> steps_of(["first", "second"]), steps_of(["checkpoint-500"])
([0, 1], [None])
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from anisoscope.errors import UsageError

if TYPE_CHECKING:
    from anisoscope.models.open import OpenModel

_STEP = re.compile(r"(?:step|checkpoint)[-_]?(\d+)(k?)", re.IGNORECASE)


def steps_of(names: Sequence[str]) -> list[int | None]:
    """The step of each checkpoint."""
    if len(names) == 1:
        return [None]
    found = [_STEP.findall(name) for name in names]
    read = [int(marks[-1][0]) * (1000 if marks[-1][1] else 1) if marks else None for marks in found]
    return read if None not in read and len(set(read)) == len(read) else list(range(len(names)))


def open_checkpoints(names: Sequence[str], **options: Any) -> Iterator[tuple[int | None, OpenModel]]:
    """Open one checkpoint after the other, so that one model at a time is in memory; options are `open_model`'s."""
    from anisoscope.models.open import open_model

    if not names:
        raise UsageError("no model was named", do="name one, or several checkpoints in order of training")
    for name, step in zip(names, steps_of(names), strict=True):
        where, revision = split_revision(name)
        yield step, open_model(where, revision=revision, **options)


def split_revision(name: str) -> tuple[str, str | None]:
    """The name and the revision of `name@revision`; a path that exists is left as it is.

    >>> split_revision("EleutherAI/pythia-70m@step1000"), split_revision("gpt2")
    (('EleutherAI/pythia-70m', 'step1000'), ('gpt2', None))
    """
    where, mark, revision = name.rpartition("@")
    return (where, revision) if mark and where and not Path(name).exists() else (name, None)
