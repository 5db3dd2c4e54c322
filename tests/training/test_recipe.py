"""A recipe survives its TOML, and a wrong one is refused with the reason."""

from __future__ import annotations

import itertools
import tomllib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anisoscope.errors import UsageError
from anisoscope.training.recipe import OBJECTIVES, Recipe, make_recipe, parse_seeds

ARCHS = [(arch, objective) for arch, objectives in OBJECTIVES.items() for objective in objectives]


@settings(deadline=None)
@given(
    pair=st.sampled_from(ARCHS),
    data=st.lists(st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1), min_size=1, max_size=3),
    heads=st.integers(1, 8),
    width=st.integers(4, 16),
    steps=st.integers(1, 10**6),
    seeds=st.lists(st.integers(0, 2**31), min_size=1, max_size=4, unique=True),
    rate=st.floats(1e-6, 1.0),
)
def test_toml_gives_the_recipe_back(tmp_path_factory, pair, data, heads, width, steps, seeds, rate) -> None:
    arch, objective = pair
    recipe = make_recipe(
        arch=arch, objective=objective, data=data, heads=heads, hidden=2 * heads * width, steps=steps, seeds=seeds,
        learning_rate=rate,
    )  # fmt: skip
    path = tmp_path_factory.mktemp("recipe") / "recipe.toml"
    path.write_text(recipe.to_toml(), encoding="utf-8")
    assert Recipe.read(path) == recipe
    assert tomllib.loads(recipe.to_toml())["data"] == data


@settings(deadline=None)
@given(steps=st.integers(1, 10**5), first=st.integers(1, 100), per_doubling=st.integers(1, 4))
def test_the_grid_is_logarithmic_from_step_0_to_the_last(steps: int, first: int, per_doubling: int) -> None:
    grid = make_recipe(data=["-"], steps=steps, first_checkpoint=first, per_doubling=per_doubling).grid()
    assert grid[0] == 0
    assert grid[-1] == steps
    assert list(grid) == sorted(set(grid))
    inner = grid[1:-1]
    assert all(step >= first for step in inner)
    ratio = 2 ** (1 / per_doubling)
    assert all(b <= ratio * a + (ratio + 1) / 2 for a, b in itertools.pairwise(inner))  # each is rounded by up to 1/2


def test_defaults_follow_the_architecture() -> None:
    assert make_recipe(arch="gpt2", data=["-"]).objective == "clm"
    assert make_recipe(arch="vit", data=["-"], hidden=64).feedforward == 256
    assert make_recipe(arch="bert", data=["-"], feedforward=100).feedforward == 100


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"arch": "rnn"}, "arch"),
        ({"arch": "gpt2", "objective": "mlm"}, "gpt2 is trained for clm or headless"),
        ({"hidden": 100, "heads": 3}, "not a multiple of 3 heads"),
        ({"arch": "llama", "hidden": 12, "heads": 4}, "even head size"),
        ({"arch": "convnet", "attention": "gated"}, "no attention"),
        ({"arch": "vit", "image_size": 9}, "not a multiple of the patch"),
        ({"seeds": [1, 1]}, "twice"),
        ({"steps": 0}, "steps"),
        ({"stepz": 5}, "stepz"),
        ({"data": []}, "data"),
    ],
)
def test_what_is_wrong_is_named(fields: dict, reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        make_recipe(**{"data": ["-"], **fields})


def test_only_what_decides_the_weights_tells_two_recipes_apart() -> None:
    one = make_recipe(data=["/a/text"], data_sha256="f0", seeds=[0])
    assert one.differences(make_recipe(data=["/b/text"], data_sha256="f0", seeds=[1], save_every=7)) == []
    assert one.differences(make_recipe(data=["/a/text"], data_sha256="0f", steps=5)) == [
        "data_sha256 = 0f (was f0)",
        "steps = 5 (was 4096)",
    ]


def test_seeds_are_whole_numbers() -> None:
    with pytest.raises(UsageError, match="0,1,2"):
        parse_seeds("0;1")
