"""`anisoscope variants` from the command line: fields of the recipe, a plan, the story."""

from __future__ import annotations

import json
from pathlib import Path

from anisoscope.runs.store import open_run


def test_a_plan_from_the_command_line(command, tmp_path: Path) -> None:
    text, plan, out = tmp_path / "text", tmp_path / "plan.toml", tmp_path / "out"
    text.write_bytes(b"The quick brown fox jumps over the lazy dog.\n" * 300)
    plan.write_text("[narrow]\nhidden = 8\n[wide]\nhidden = 16\n")
    sizes = [f"--recipe={field}" for field in ("layers=1", "heads=2", "length=32", "batch=4", "validation_batches=2")]
    given = ("--data", text, "--texts", text, "--plan", plan, "--seeds", "0", "--steps", 2, "--limit", 2, *sizes)
    done = command("variants", *given, "--threads", 1, "--no-figures", "--out", out)
    assert done.code == 0, done.err
    assert done.out.startswith("variants: Control narrow: loss ")
    assert "one seed, so no intervals" in done.out
    assert "minus narrow" in done.out
    settings = open_run(out).manifest["settings"]
    assert settings["plan"] == {"narrow": {"hidden": 8}, "wide": {"hidden": 16}}
    assert settings["recipe"]["layers"] == 1
    again = command("variants", *given, "--no-figures", "--out", out, "--json")
    assert json.loads(again.out)["verdict"] == open_run(out).manifest["verdict"]


def test_wrong_words_are_answered_with_the_nearest(command, tmp_path: Path) -> None:
    for arguments, reason in (
        (("--arms", "softmax,gatd"), 'did you mean "gated"'),
        (("--recipe", "hiden=96"), 'did you mean "hidden"'),
        (("--recipe", "hidden"), "name=value"),
        (("--steps", "0"), "steps"),
    ):
        done = command("variants", "--data", "text", *arguments, "--out", tmp_path / "out")
        assert (done.code, reason in done.err) == (2, True), done.err
    assert not (tmp_path / "out").exists()
