"""Series of checkpoints: where they are found, which steps are taken, and what looks wrong in them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from anisoscope.errors import InputError, UsageError
from anisoscope.models.catalogue import MULTIBERT_STEPS, PYTHIA_PAPER_STEPS, PYTHIA_STEPS, Checkpoint
from anisoscope.models.checkpoints import Weights, choose_steps, fingerprint, open_series, parse_steps, suspicious


def folders(root: Path, *names: str) -> Path:
    for name in names:
        (root / name).mkdir(parents=True)
    return root


# -- finding -----------------------------------------------------------------------------------------------------------


def test_a_folder_of_checkpoints_is_in_order_of_steps_not_of_names(tmp_path: Path) -> None:
    folders(tmp_path / "run", "checkpoint-1000", "checkpoint-20", "checkpoint-3", "resume", "checkpoint-last")
    series = open_series(tmp_path / "run")
    assert [(one.step, one.seed, Path(one.model).name) for one in series.checkpoints] == [
        (3, None, "checkpoint-3"),
        (20, None, "checkpoint-20"),
        (1000, None, "checkpoint-1000"),
    ]
    assert (series.name, series.missing) == ("run", ())


def test_seeds_are_folders_and_a_step_that_only_one_seed_has_is_listed(tmp_path: Path) -> None:
    folders(tmp_path, "seed-0/checkpoint-8", "seed-0/checkpoint-16", "seed-1/checkpoint-8", "seed-10/checkpoint-8")
    series = open_series(tmp_path, seeds=[0, 1])
    assert [(one.seed, one.step) for one in series.checkpoints] == [(0, 8), (0, 16), (1, 8)]
    assert series.missing == ("step 16 of seed 1: no such checkpoint",)
    assert open_series(tmp_path).seeds == (0, 1, 10)


def test_steps_that_are_asked_for_and_not_there_are_listed(tmp_path: Path) -> None:
    folders(tmp_path, "checkpoint-8", "checkpoint-16")
    series = open_series(tmp_path, steps="8,12,16")
    assert [one.step for one in series.checkpoints] == [8, 16]
    assert series.missing == ("step 12: no such checkpoint",)
    with pytest.raises(InputError, match="none of these"):
        open_series(tmp_path, steps="5,7")


def test_a_seed_in_the_path_above_the_series_is_not_its_seed(tmp_path: Path) -> None:
    series = open_series(folders(tmp_path / "seed-7" / "run", "checkpoint-8"))
    assert series.checkpoints[0].seed is None


def test_a_glob_reads_step_and_seed_off_the_names(tmp_path: Path) -> None:
    folders(tmp_path, "multiberts-seed_0-step_20k", "multiberts-seed_0-step_0k", "multiberts-seed_1-step_20k")
    series = open_series(f"{tmp_path}/multiberts-*")
    assert [(one.seed, one.step) for one in series.checkpoints] == [(0, 0), (0, 20_000), (1, 20_000)]
    folders(tmp_path, "multiberts-final")
    with pytest.raises(UsageError, match="no step in the name"):
        open_series(f"{tmp_path}/multiberts-*")


def test_a_toml_list_names_folders_beside_it_and_models_elsewhere(tmp_path: Path) -> None:
    folders(tmp_path, "stage-one")
    (tmp_path / "stages.toml").write_text(
        'name = "stages"\n[[checkpoints]]\nstep = 1\nmodel = "owner/two"\nrevision = "v2"\n'
        '[[checkpoints]]\nstep = 0\nmodel = "stage-one"\n'
    )
    series = open_series(tmp_path / "stages.toml")
    assert series.name == "stages"
    assert series.checkpoints == (Checkpoint(0, str(tmp_path / "stage-one")), Checkpoint(1, "owner/two", revision="v2"))


@pytest.mark.parametrize("text", ["checkpoints = 3", "[[checkpoints]]\nstep = 1\n", "a = 1"])
def test_a_bad_list_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "bad.toml").write_text(text)
    with pytest.raises(UsageError, match="not a list of checkpoints"):
        open_series(tmp_path / "bad.toml")


@pytest.mark.parametrize("text", ["[[checkpoints]]\nmodel", "a = " + "[" * 100_000], ids=["cut off", "nested"])
def test_a_list_that_is_not_toml_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "bad.toml").write_text(text)
    with pytest.raises(UsageError, match="not valid TOML"):
        open_series(tmp_path / "bad.toml")


def test_two_checkpoints_for_one_step_are_refused(tmp_path: Path) -> None:
    folders(tmp_path, "a/checkpoint-8", "b/checkpoint-8")
    with pytest.raises(UsageError, match="two checkpoints for step 8"):
        open_series(f"{tmp_path}/*/checkpoint-8")


def test_published_series_vary_the_repository_or_the_revision() -> None:
    multiberts = open_series("multiberts", steps="0,20k", seeds=(0, 4))
    assert [one.model for one in multiberts.checkpoints] == [
        f"google/multiberts-seed_{seed}-step_{step}k" for seed in (0, 4) for step in (0, 20)
    ]
    pythia = open_series("EleutherAI/pythia-70m", steps="21")
    assert [one.revision for one in pythia.checkpoints] == [f"step{step}" for step in PYTHIA_PAPER_STEPS]
    with pytest.raises(UsageError, match="no seeds"):
        open_series("EleutherAI/pythia-70m", seeds=(1,))
    with pytest.raises(UsageError, match="no checkpoint was published"):
        open_series("multiberts", steps="0,21k")


@pytest.mark.parametrize("where", ["/no/such/place", "./nothing", "no-such-series"])
def test_what_is_nowhere_is_refused(where: str) -> None:
    with pytest.raises(UsageError):
        open_series(where)


# -- choosing ----------------------------------------------------------------------------------------------------------


def range_doubling(first: int, last: int) -> list[int]:
    return [first, *(range_doubling(2 * first, last) if first < last else [])]


def test_log_steps_at_least_double_and_keep_both_ends() -> None:
    chosen = choose_steps(PYTHIA_STEPS, "log")
    assert chosen == [0, *(2**power for power in range(10)), *range_doubling(2000, 128_000), 143_000]
    assert choose_steps(MULTIBERT_STEPS, "log") == [step * 1000 for step in (0, 20, 40, 80, 160, 400, 800, 1600, 2000)]


def test_a_count_is_even_over_the_training() -> None:
    assert choose_steps(range(0, 1001, 10), "5") == [0, 250, 500, 750, 1000]
    assert choose_steps([0, 1, 2, 4, 8, 16], "3") == [0, 8, 16]
    assert choose_steps([0, 1], "21") == [0, 1]


@pytest.mark.parametrize(
    ("text", "expected"),
    [("all", "all"), ("LOG", "log"), ("21", 21), ("1000,", [1000]), ("2k, 0,1_000", [0, 1000, 2000])],
)
def test_steps_are_read(text: str, expected: object) -> None:
    assert parse_steps(text) == expected


@pytest.mark.parametrize("text", ["", "some", "1", "0", "1-5", "1.5,2", ","])
def test_bad_steps_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="steps"):
        parse_steps(text)


# -- judging -----------------------------------------------------------------------------------------------------------


def walk(steps: list[int], *, seed: int = 0) -> list[tuple[Checkpoint, Weights]]:
    """A training that moves its weights at random: one unit of step, one unit of variance."""
    rng = np.random.default_rng(seed)
    at, before, found = rng.normal(size=512) * 10, 0, []
    for step in steps:
        at, before = at + rng.normal(size=512) * (step - before) ** 0.5, step
        found.append((Checkpoint(step, "", seed=seed), Weights(f"{seed}/{step}", at.astype(np.float32))))
    return found


def test_an_honest_series_raises_no_alarm() -> None:
    assert suspicious(walk([0, 1, 2, 4, 8, 16, 32, 64, 128]) + walk([0, 16, 32, 48], seed=1)) == []


def test_equal_weights_are_flagged_wherever_they_are() -> None:
    found = walk([0, 16, 32, 48]) + walk([0, 16], seed=1)
    found[3] = (found[3][0], found[1][1])
    found[5] = (found[5][0], found[0][1])
    alarms = suspicious(found)
    assert len(alarms) == 2
    assert alarms[0].startswith("step 0 of seed 0 and step 16 of seed 1 have equal weights")
    assert alarms[1].startswith("step 16 of seed 0 and step 48 of seed 0 have equal weights")


def test_nearly_equal_neighbours_are_flagged() -> None:
    found = walk([0, 16, 32])
    nudged = found[1][1].sketch.copy()
    nudged[0] += 1e-5
    found[2] = (found[2][0], Weights("other", nudged))
    assert suspicious(found) == ["step 16 of seed 0 and step 32 of seed 0 have nearly equal weights"]


def test_a_checkpoint_in_the_wrong_place_is_flagged() -> None:
    found = walk([0, 10, 20, 1000, 1010, 1020])
    swapped = [*found[:1], (found[1][0], found[4][1]), *found[2:4], (found[4][0], found[1][1]), found[5]]
    alarms = suspicious(swapped)
    assert any(alarm.startswith("step 10 of seed 0 is much nearer to step 10") for alarm in alarms)


def test_other_shapes_are_flagged() -> None:
    found = walk([0, 16, 32])
    found[2] = (found[2][0], Weights("other", np.zeros(100, np.float32)))
    assert suspicious(found) == ["step 32 of seed 0 has weights of another shape"]


def test_the_fingerprint_sees_every_weight_and_the_sketch_keeps_distances() -> None:
    torch.manual_seed(0)
    a = nn.Sequential(nn.Linear(100, 200), nn.Linear(200, 3))
    b = nn.Sequential(nn.Linear(100, 200), nn.Linear(200, 3))
    b.load_state_dict(a.state_dict())
    assert fingerprint(a).sha256 == fingerprint(b).sha256
    with torch.no_grad():
        b[1].bias[2] += 1e-6
    assert fingerprint(a).sha256 != fingerprint(b).sha256
    with torch.no_grad():
        for weight in b.parameters():
            weight.add_(0.1 * torch.randn_like(weight))
    near, far = fingerprint(a).sketch, fingerprint(b).sketch
    assert 4000 < len(near) < 12_000
    whole = torch.cat([(x - y).flatten() for x, y in zip(a.parameters(), b.parameters(), strict=True)])
    assert np.sqrt(np.square(near - far).mean()) == pytest.approx(
        float(whole.detach().square().mean().sqrt()), rel=0.05
    )
