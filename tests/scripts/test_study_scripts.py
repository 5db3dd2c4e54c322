"""The scripts of the studies run on a grid of tiny trainings and on a tiny encoder, and their numbers are right."""

from __future__ import annotations

import csv
import math
import sys
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file
from scipy.stats import spearmanr
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss

import anisoscope
import encoders
from anisoscope.models.open import open_model

sys.path.insert(0, str(Path(__file__).parents[2] / "scripts"))
retrieval, size, downstream, summary, objectives, versions = map(
    import_module,
    ("retrieval_study", "size_study", "downstream_study", "downstream_summary", "objectives_study", "encoder_versions"),
)
pytestmark = pytest.mark.usefixtures("one_thread")
STEPS = 4
PLAN = {"softmax": {"hidden": 8}, "clm": {"hidden": 16}, "headless": {"hidden": 16, "objective": "headless"}}


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two megabytes with links, of which the downstream study reads the end."""
    file = tmp_path_factory.mktemp("text") / "text"
    draw = np.random.default_rng(0)
    words = [f"[[{word}]]" if draw.random() < 0.2 else word for word in draw.choice(encoders.WORDS, 20_000)]
    file.write_text(" ".join(words) * 25)
    return file


@pytest.fixture(scope="module")
def grid(text: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three arms of two sizes, two seeds each, and two checkpoints of every training."""
    recipe = {"arch": "gpt2", "layers": 2, "heads": 2, "length": 64, "batch": 2, "validation_batches": 2, "warmup": 1}
    out = tmp_path_factory.mktemp("grid") / "run"
    asked = {"data": [str(text)], "seeds": [0, 1], "steps": STEPS, "limit": 2, "plan": PLAN}
    anisoscope.variants(**asked, recipe=recipe | {"first_checkpoint": 2}, out=out)
    return out


@pytest.fixture
def docs(tmp_path: Path) -> Path:
    for name in ("tables", "figures"):
        (tmp_path / name).mkdir()
    return tmp_path


def table(docs: Path, name: str) -> list[dict[str, str]]:
    return list(csv.DictReader((docs / "tables" / name).open()))


def test_sizes(grid: Path, docs: Path) -> None:
    size.main(grid, docs)
    lines = table(docs, "size.csv")
    assert [(line["arm"], line["seed"]) for line in lines] == [(arm, seed) for arm in PLAN for seed in "01"]
    for line in lines:
        file = grid / "training" / line["arm"] / f"seed-{line['seed']}" / f"checkpoint-{STEPS}" / "model.safetensors"
        assert int(line["parameters"]) == sum(weight.size for weight in load_file(file).values())
    slope = np.polyfit(*([math.log(float(line[name])) for line in lines] for name in ("parameters", "loss")), 1)[0]
    assert float(table(docs, "size-exponents.csv")[0]["exponent"]) == pytest.approx(slope, abs=1e-3)
    assert (docs / "figures" / "size.png").stat().st_size > 5000


def test_probes_and_their_summary(grid: Path, text: Path, docs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(downstream, "STEP", STEPS)
    few = {name: getattr(downstream, name) for name in ("code_or_prose", "topic")}
    for name, make in few.items():
        monkeypatch.setattr(downstream, name, lambda count, make=make: make(count // 10))
    monkeypatch.setattr(downstream, "link", lambda file, count, make=downstream.link: make(file, count // 10))
    (docs / "series" / "seed-0").mkdir(parents=True)
    (docs / "series" / "seed-0" / "checkpoint-8192").symlink_to(downstream.SERIES / "seed-0" / "checkpoint-8192")
    monkeypatch.setattr(downstream, "SERIES", docs / "series")
    downstream.main(grid, text, docs)
    lines = table(docs, "downstream.csv")
    assert len(lines) == len(PLAN) * 2 * 3 * 3  # arms, seeds, tasks, sites
    along = table(docs, "downstream-series.csv")
    assert {(one["seed"], one["step"]) for one in along} == {("0", "8192")}
    assert list(dict.fromkeys(one["site"] for one in along)) == ["embeddings", *(f"block.{k}" for k in range(4))]
    downstream.main(grid, text, docs)
    assert table(docs, "downstream.csv") == lines  # nothing is probed twice
    (docs / "downstream.md").write_text("Before.\n\n| task | site |\n\nAfter.\n")
    summary.main(docs)
    page = (docs / "downstream.md").read_text(encoding="utf-8")
    assert page.startswith("Before.\n\n| task | site | `softmax` |")
    assert page.endswith("|\n\nAfter.\n")
    found = table(docs, "downstream-summary.csv")
    one = next(line for line in found if (line["task"], line["site"], line["arm"]) == ("link", "block.0", "clm"))
    mine = {
        (line["arm"], line["seed"]): float(line["accuracy"])
        for line in lines
        if (line["task"], line["site"]) == ("link", "block.0")
    }
    gain = np.mean([mine["clm", seed] - mine["softmax", seed] for seed in "01"])
    assert float(one["difference"]) == pytest.approx(gain, abs=1e-4)
    tied = table(docs, "downstream-correlations.csv")
    own = [line for line in lines if (line["task"], line["site"]) == ("link", "block.0")]
    ranks = [[float(line[name]) for line in own] for name in ("mean_cosine", "accuracy")]
    rho = next(line for line in tied if (line["task"], line["site"], line["without"]) == ("link", "block.0", ""))
    assert float(rho["spearman"]) == pytest.approx(spearmanr(ranks[0], ranks[1])[0], abs=1e-3)
    within: dict[str, list[float]] = {}
    for arm, seed in mine:
        own = [line for line in lines if (line["arm"], line["seed"], line["task"]) == (arm, seed, "link")]
        ranks = [[float(line[name]) for line in own] for name in ("mean_cosine", "accuracy")]
        if len(set(ranks[1])) > 1:
            within.setdefault(seed, []).append(float(np.array(spearmanr(ranks[0], ranks[1]))[0]))
    sites = next(line for line in tied if (line["task"], line["over"]) == ("link", "sites"))
    assert float(sites["spearman"]) == pytest.approx(np.mean([np.mean(v) for v in within.values()]), abs=1e-3)
    assert (docs / "figures" / "downstream-series.png").stat().st_size > 5000


def test_the_cosine_of_the_probes_is_that_of_all_pairs(grid: Path, text: Path) -> None:
    module = open_model(grid / "training" / "clm" / "seed-0" / f"checkpoint-{STEPS}").module
    task = downstream.link(text, 3)
    _, cosines = downstream.states(module, task)
    with torch.inference_mode():
        hidden = module(input_ids=torch.tensor(task[0]), output_hidden_states=True).hidden_states[1]
    x = hidden.double().flatten(0, 1).numpy()
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    assert cosines["block.0"] == pytest.approx((x @ x.T)[~np.eye(len(x), dtype=bool)].mean(), abs=1e-6)


def test_retrieval(docs: Path, tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    sentence = lambda: " ".join(draw.choice(encoders.WORDS[:11], 12))  # noqa: E731
    paragraph = lambda: " . ".join(sentence() for _ in range(8)) + " .\n"  # noqa: E731
    article = "\n = Title = \n\n{}" + " \n = = Part = = \n\n{}{}"
    text = "\n".join(article.format(*(paragraph() for _ in range(3))) for _ in range(40))
    pairs, rest = retrieval.judgements(retrieval.articles(text))
    assert len({query for query, _, _ in pairs}) == 40
    assert len(pairs) == 80
    assert not {word for query, document, _ in pairs for word in (query, document)} & set(rest)
    (tmp_path / "text.txt").write_text(text)
    retrieval.main(tmp_path / "text.txt", docs, [str(encoders.tiny_bert(tmp_path / "encoder"))])
    found = {(line["correction"], line["metric"]): float(line["value"]) for line in table(docs, "retrieval.csv")}
    sites = [site for site, metric in found if metric == "ndcg_difference"]
    assert sites
    before = next(value for (site, metric), value in found.items() if metric == "ndcg" and site not in sites)
    for site in sites:
        assert found[site, "ndcg_difference"] == pytest.approx(found[site, "ndcg"] - before, abs=2e-4)


def test_objectives_at_equal_quality(grid: Path, docs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(objectives, "FITTED", 8)
    objectives.main(grid, docs)
    lines = table(docs, "objectives-matched.csv")
    assert [(line["arm"], line["step"]) for line in lines] == [(arm, s) for arm in objectives.ARMS for s in "2424"]
    last, equal = table(docs, "objectives-contrasts.csv")[1:3]
    ends, reached = [], []
    for seed in "01":
        both = [_curve(lines, arm, seed) for arm in objectives.ARMS]
        loss = max(losses[-1] for losses, _ in both)
        at = [np.interp(-loss, -np.minimum.accumulate(losses), cosines) for losses, cosines in both]
        ends.append(both[1][1][-1] - both[0][1][-1])
        reached.append(at[1] - at[0])
    assert float(last["difference"]) == pytest.approx(np.mean(ends), abs=1e-4)
    assert float(equal["difference"]) == pytest.approx(np.mean(reached), abs=1e-4)


def _curve(lines: list[dict[str, str]], arm: str, seed: str) -> tuple[np.ndarray, np.ndarray]:
    mine = [line for line in lines if (line["arm"], line["seed"]) == (arm, seed)]
    losses, cosines = ([float(line[name]) for line in mine] for name in ("head_loss", "mean_cosine"))
    return np.array(losses), np.array(cosines)


def test_the_loss_of_a_head_is_that_of_a_regression() -> None:
    draw = np.random.default_rng(0)
    x, w = draw.standard_normal((6000, 5)), draw.standard_normal((5, 4))
    y = np.array([draw.choice(4, p=np.exp(z) / np.exp(z).sum()) for z in x @ w])
    old, new = slice(0, 4000), slice(4000, None)
    pair = lambda some: (torch.tensor(x[some], dtype=torch.float32), torch.tensor(y[some]))  # noqa: E731
    probe = LogisticRegression(C=1e6, max_iter=2000).fit(x[old], y[old])
    expected = log_loss(y[new], probe.predict_proba(x[new]))
    assert objectives.head_loss(pair(old), pair(new), 4, epochs=150) == pytest.approx(expected, abs=5e-3)


def test_equal_losses_are_read_between_checkpoints() -> None:
    falling = [(4.0, 0.5), (3.0, 0.2), (2.0, 0.4)]
    assert objectives.matched(falling, [(5.0, 0.0), (2.5, 0.1)]) == pytest.approx((2.5, 0.3, 0.1))
    assert objectives.matched([(5.0, 0.0), (3.5, 0.1)], falling) == pytest.approx((3.5, 0.1, 0.35))


def test_weights_in_int8_have_255_levels_per_row(tmp_path: Path) -> None:
    model = encoders.tiny_bert(tmp_path / "encoder")
    versions.round_to_int8(model, tmp_path / "rounded")
    before, after = (load_file(folder / "model.safetensors") for folder in (model, tmp_path / "rounded"))
    for name, weight in before.items():
        if weight.ndim == 2:
            step = np.abs(weight).max(axis=1, keepdims=True) / 127
            assert (np.abs(after[name] - weight) <= 0.51 * step).all(), name
            levels = after[name] / step.clip(1e-30)
            np.testing.assert_allclose(levels, np.round(levels), atol=1e-3)
        else:
            np.testing.assert_array_equal(after[name], weight)
    assert open_model(tmp_path / "rounded").module is not None
