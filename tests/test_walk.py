"""The ten commands of docs/howto-embeddings.md, in order: on real MiniLM where it is here, else on a tiny encoder.

The step for a build server, in docs/howto.md, is a workflow whose commands are understood.
"""

from __future__ import annotations

import csv
import re
import shlex
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from sentence_transformers import SentenceTransformer

import anisoscope
from anisoscope.cli.main import main
from anisoscope.inputs.sentences import FILE, read_topics
from encoders import MINILM, WORDS, sentence_folder
from test_docs import parse

torch.set_num_threads(1)

DOCS = Path(__file__).parent.parent / "docs"


def fenced(page: str, kind: str) -> list[str]:
    text = (DOCS / page).read_text(encoding="utf-8")
    return re.findall(rf"^```{kind}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


def commands() -> list[str]:
    """The walk: every command of the console blocks that works in the folder of this test."""
    lines = "".join(fenced("howto-embeddings.md", "console")).replace("\\\n", " ").splitlines()
    walk = [line for line in lines if line.startswith("anisoscope ")]
    return walk[:10]


@pytest.fixture(scope="module")
def topics() -> dict[str, list[str]]:
    """Sentences by topic; for the tiny encoder, of the words that it knows."""
    if MINILM.is_dir():
        return dict(list(read_topics(FILE.read_text(encoding="utf-8")).items())[:10])
    rng = np.random.default_rng(0)
    themes = {f"theme {k}": rng.choice(WORDS, 5, replace=False) for k in range(10)}
    return {name: [" ".join(rng.choice(own, 6)) for _ in range(10)] for name, own in themes.items()}


@pytest.fixture
def place(topics: dict[str, list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The encoder, the texts, labelled pairs (a sentence and two others of its topic) and the rules of the page."""
    monkeypatch.chdir(tmp_path)
    if MINILM.is_dir():
        shutil.copytree(MINILM, "encoder")
    else:
        sentence_folder(tmp_path / "encoder", length=24)
    texts = [line for lines in topics.values() for line in lines]
    Path("texts.txt").write_text("\n".join(texts), encoding="utf-8")
    with Path("judgements.csv").open("w", encoding="utf-8", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow(("query", "document", "label"))
        writer.writerows((lines[0], lines[k], 1) for lines in topics.values() for k in (1, 2))
    [rules] = fenced("howto-embeddings.md", "toml")
    Path("gate.toml").write_text(rules, encoding="utf-8")
    return tmp_path


def test_ten_commands_lead_from_a_floor_to_a_gated_encoder(place: Path) -> None:
    walk = commands()
    assert len(walk) == 10
    codes = []
    for line in walk:
        with pytest.raises(SystemExit) as ended:
            main([*shlex.split(line)[1:], "--no-figures"] if "remedy export" not in line else shlex.split(line)[1:])
        codes.append(int(ended.value.code or 0))
    assert codes[:-1] == [0] * 9
    said = (place / "summary.md").read_text(encoding="utf-8")
    assert ["**Holds", "**Fails", "**Cannot say"][codes[-1]] in said
    texts = (place / "texts.txt").read_text(encoding="utf-8").splitlines()
    raw, repaired = (SentenceTransformer(name, device="cpu").encode(texts) for name in ("encoder", "repaired"))
    np.testing.assert_allclose(anisoscope.Remedy.load("remedy").transform(raw), repaired, atol=1e-5)
    after = anisoscope.open_run("runs/after").value("mean_cosine", site="embedding")
    unit = repaired / np.linalg.norm(repaired, axis=1, keepdims=True)
    gram = (unit @ unit.T).astype(float)
    assert after == pytest.approx((gram.sum() - np.trace(gram)) / (len(gram) * (len(gram) - 1)), abs=1e-5)
    if MINILM.is_dir():
        assert codes[-1] == 0, said


def test_the_step_for_a_build_server_is_a_workflow() -> None:
    [workflow] = fenced("howto.md", "yaml")
    [job] = yaml.safe_load(workflow)["jobs"].values()
    lines = [line for step in job["steps"] for line in step.get("run", "").replace("\\\n", " ").splitlines()]
    gates = [line for line in lines if line.startswith("anisoscope gate ")]
    assert len(gates) == 1
    assert "$GITHUB_STEP_SUMMARY" in gates[0]
    for line in lines:
        if line.startswith("anisoscope "):
            parse(line.partition(" ")[2])
