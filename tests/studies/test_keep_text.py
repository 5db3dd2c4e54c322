"""`--keep-text`: the text beside a sampled vector is the one that the vector was computed from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModel, AutoTokenizer

import anisoscope
from anisoscope.accumulate.texts import Texts
from anisoscope.models.embedded_series import EMBEDDED
from anisoscope.report.page.sections import neighbours
from anisoscope.runs.array_names import texts_of
from encoders import TEXTS, sentence_folder

BERT = EMBEDDED / "seed-0/checkpoint-64"
LINES = ["To be, or not to be.", "That is the question, is it not?", "Whether 'tis nobler", "in the mind to suffer"]


def kept(found: Any, model: str, observer: str, site: str) -> list[tuple[np.ndarray, str | None]]:
    """(vector, text) of everything sampled at a site, from the sums that the run holds."""
    state, kind = found.run.state(), "embedding" if observer == "embedding" else "tokens"
    texts = Texts.from_state({n: state[f"{model}|texts|{kind}|{n}"] for n in ("keys", "positions", "texts", "meta")})
    sample = {n: np.asarray(state[f"{model}|{observer}|{site}|reservoir.{n}"]) for n in ("x", "keys", "positions")}
    return list(zip(sample["x"], texts.of(sample["keys"].view(np.uint64), sample["positions"]), strict=True))


def test_a_token_stands_in_its_context(tmp_path: Path) -> None:
    """The state at the bracket, from the library alone, is the sampled vector."""
    found = anisoscope.measure(
        BERT, LINES, keep_text=True, sample=64, specials="drop", spectrum=False, neighbours=False, out=tmp_path / "run"
    )
    model, tokenizer = AutoModel.from_pretrained(BERT, dtype=torch.float32), AutoTokenizer.from_pretrained(BERT)
    sampled = kept(found, "checkpoint-64", "hidden", "block.2")
    assert len(sampled) == 64
    for vector, text in sampled:
        before, rest = (text or "").split("⟦")
        token, after = rest.split("⟧")
        line = next(one for one in LINES if before + token + after in one)
        with torch.no_grad():
            states = model(**tokenizer(line, return_tensors="pt"), output_hidden_states=True).hidden_states[3][0]
        place = 1 + line.index(before + token + after) + len(before)  # one byte per token, after the first special
        np.testing.assert_allclose(states[place], vector, atol=2e-5)
    assert "kept for at most 64" in found.protocol["checkpoint-64"]["text"]
    assert any("excerpts" in note for note in found.notes)


def test_a_whole_text_stands_beside_its_embedding(tmp_path: Path) -> None:
    from sentence_transformers import SentenceTransformer

    folder = sentence_folder(tmp_path / "model", length=64)
    made = {"sites": ["embedding"], "keep_text": True, "spectrum": False, "neighbours": False}
    found = anisoscope.measure(folder, TEXTS, **made, out=tmp_path / "run")
    library = SentenceTransformer(str(folder), device="cpu")
    sampled = kept(found, "model", "embedding", "embedding")
    assert len(sampled) == len(TEXTS)
    for vector, text in sampled:
        np.testing.assert_allclose(library.encode([text or ""])[0], vector, atol=1e-5)
    assert any("[UNK]" in (text or "") for _, text in sampled)  # a word that the tokenizer does not know


def test_by_default_nothing_is_kept(tmp_path: Path) -> None:
    found = anisoscope.measure(BERT, LINES, spectrum=False, neighbours=False, out=tmp_path / "run")
    assert not [name for name in found.run.state() if "|texts|" in name]
    assert "text" not in found.protocol["checkpoint-64"]
    assert list(neighbours.pictures(found.run, {})) == []


@pytest.mark.parametrize("group", [None, "article"])
def test_rows_of_a_file_keep_the_text_of_their_column(tmp_path: Path, group: str | None) -> None:
    rng = np.random.default_rng(0)
    x, article = rng.standard_normal((300, 5)).astype(np.float32), rng.integers(20, size=300)
    words = np.array([f"row {k}" for k in range(300)])
    np.savez(tmp_path / "x.npz", x=x, article=article, word=words)
    made: dict[str, Any] = {"column": "x", "group": group, "sample": 100}
    plain = anisoscope.vectors(tmp_path / "x.npz", **made, out=tmp_path / "plain")
    found = anisoscope.vectors(tmp_path / "x.npz", **made, ids="word", keep_text=True, out=tmp_path / "run")
    for vector, text in kept(found, "", "hidden", "vectors"):
        np.testing.assert_array_equal(vector, x[int((text or "").removeprefix("row "))])
    assert [(row.metric, row.value) for row in plain.rows] == [(row.metric, row.value) for row in found.rows]
    assert found.protocol["text"] == "column word, kept for the sample (--keep-text)"


def test_shares_of_the_data_keep_what_the_whole_keeps(tmp_path: Path) -> None:
    made: dict[str, Any] = {"keep_text": True, "sample": 64, "spectrum": False, "neighbours": False}
    (tmp_path / "lines.txt").write_text("\n".join(LINES * 3) + "\n")
    made |= {"data": [str(tmp_path / "lines.txt")], "documents": "lines"}
    whole = anisoscope.measure(BERT, **made, out=tmp_path / "whole")
    for k in range(2):
        anisoscope.measure(BERT, **made, shard=f"{k}/2", out=tmp_path / f"part-{k}")
    merged = anisoscope.merge([tmp_path / "part-0", tmp_path / "part-1"], out=tmp_path / "merged")
    told = [[text for _, text in kept(one, "checkpoint-64", "hidden", "block.0")] for one in (whole, merged)]
    assert told[0] == told[1]
    assert None not in told[0]


def test_sampled_queries_of_a_sweep_know_their_token(tmp_path: Path) -> None:
    """Each sampled query, projected on the plane of its head, is that of the token in brackets."""
    made: dict[str, Any] = {"steps": "0,64", "seeds": [0], "sample": 16, "sites": ["attention"], "keep_text": True}
    found = anisoscope.sweep("embedded", LINES, **made, out=tmp_path / "run")
    arrays, name = found.run.arrays(), "seed-0/block.1/union/query_points"
    texts, numbers = texts_of(arrays, name) or ([], np.zeros(0))
    points, axes = arrays[name][1, 3], arrays["seed-0/block.1/union/axes"][3]  # step 64, head 3
    model, tokenizer = AutoModel.from_pretrained(BERT, dtype=torch.float32), AutoTokenizer.from_pretrained(BERT)
    seen: list[torch.Tensor] = []
    model.encoder.layer[1].attention.self.query.register_forward_hook(lambda _m, _i, out: seen.append(out[0]))
    plain = 0
    for point, number in zip(points, numbers[1, 3], strict=True):
        before, rest = texts[number].split("⟦")
        token, after = rest.split("⟧")
        if token in tokenizer.all_special_tokens:
            continue
        line = next(one for one in LINES if before + token + after in one)
        with torch.no_grad():
            model(**tokenizer(line, return_tensors="pt"))
        place = 1 + line.index(before + token + after) + len(before)
        query = seen[-1].reshape(-1, 4, 24)[place, 3].numpy()
        np.testing.assert_allclose(query @ axes.T, point, atol=1e-4)
        plain += 1
    assert plain >= 10


def test_neighbours_and_hubs_are_those_of_brute_force() -> None:
    x = np.random.default_rng(0).standard_normal((60, 6)) + 0.5
    found = neighbours.picture(x, list(range(60)))
    units = x / np.linalg.norm(x, axis=1, keepdims=True)
    cosine = units @ units.T - 2 * np.eye(60)
    order = np.argsort(-cosine, axis=1)
    assert np.array_equal(found["near"], order[:, :6])
    np.testing.assert_allclose(found["cosines"], np.take_along_axis(cosine, order[:, :6], 1), rtol=6e-3)
    counts = np.bincount(order[:, :10].ravel(), minlength=60)
    assert [count for _, count in found["hubs"]] == sorted(counts, reverse=True)[:10]
    assert all(counts[row] == count for row, count in found["hubs"])
