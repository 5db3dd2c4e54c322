"""What was found once is not found again; and a few changed bytes for every reader, of the millions of `make fuzz`."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from fuzz.many import mutated
from fuzz.targets import TARGETS, Target

CORPUS = sorted((Path(__file__).parent / "corpus").iterdir())


def target_of(file: Path) -> Target:
    name = file.name.rpartition("-")[0]
    return next(target for known, target in TARGETS.items() if known.replace(" ", "-") == name)


@pytest.mark.parametrize("file", CORPUS, ids=[file.name for file in CORPUS])
def test_a_former_finding_is_refused_in_words(file: Path) -> None:
    target_of(file).try_one(file.read_bytes())


@pytest.mark.parametrize("name", TARGETS)
def test_changed_bytes_are_read_or_refused_in_words(name: str) -> None:
    target, rng = TARGETS[name], random.Random(name)
    for content in target.seeds:
        target.try_one(content)
    for _ in range(60):
        target.try_one(mutated(rng.choice(target.seeds), target.seeds, rng))
