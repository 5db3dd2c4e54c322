"""A recipe survives its TOML, and a wrong one is refused with the reason."""

from __future__ import annotations

import itertools
import tomllib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anisoscope.errors import UsageError
from anisoscope.training.recipe import OBJECTIVES, Recipe

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
    recipe = Recipe(
        arch=arch,
        objective=objective,
        data=data,
        heads=heads,
        hidden=2 * heads * width,
        steps=steps,
        seeds=seeds,
        learning_rate=rate,
    )
    path = tmp_path_factory.mktemp("recipe") / "recipe.toml"
    path.write_text(recipe.to_toml(), encoding="utf-8")
    assert Recipe.read(path) == recipe
    assert tomllib.loads(recipe.to_toml())["data"] == data


@settings(deadline=None)
@given(steps=st.integers(1, 10**5), first=st.integers(1, 100), per_doubling=st.integers(1, 4))
def test_the_grid_is_logarithmic_from_step_0_to_the_last(steps: int, first: int, per_doubling: int) -> None:
    grid = Recipe(data=["-"], steps=steps, first_checkpoint=first, per_doubling=per_doubling).grid()
    assert grid[0] == 0
    assert grid[-1] == steps
    assert list(grid) == sorted(set(grid))
    inner = grid[1:-1]
    assert all(step >= first for step in inner)
    ratio = 2 ** (1 / per_doubling)
    assert all(b <= ratio * a + (ratio + 1) / 2 for a, b in itertools.pairwise(inner))  # each is rounded by up to 1/2


def test_defaults_follow_the_architecture() -> None:
    assert Recipe(arch="gpt2", data=["-"]).objective == "clm"
    assert Recipe(arch="vit", data=["-"], hidden=64).feedforward == 256
    assert Recipe(arch="bert", data=["-"], feedforward=100).feedforward == 100


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"arch": "gpt3"}, 'did you mean "gpt2"'),
        ({"hidden": "wide"}, "hidden"),
        ({"learning_rate": float("inf")}, "finite"),
        ({"seeds": [-1]}, "between 0"),
        ({"arch": "gpt2", "objective": "mlm"}, "gpt2 is trained for clm or headless"),
        ({"hidden": 100, "heads": 3}, "not a multiple of 3 heads"),
        ({"arch": "llama", "hidden": 12, "heads": 4}, "even head size"),
        ({"arch": "convnet", "attention": "gated"}, "no attention"),
        ({"arch": "vit", "image_size": 9}, "not a multiple of the patch"),
        ({"seeds": [1, 1]}, "twice"),
        ({"steps": 0}, "steps"),
        ({"stepz": 5}, 'did you mean "steps"'),
        ({"data": []}, "data"),
    ],
)
def test_what_is_wrong_is_named(fields: dict, reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        Recipe.check({"data": ["-"], **fields})


def test_only_what_decides_the_weights_tells_two_recipes_apart() -> None:
    one = Recipe(data=["/a/text"], data_sha256="f0", seeds=[0])
    assert one.differences(Recipe(data=["/b/text"], data_sha256="f0", seeds=[1], save_every=7)) == []
    assert one.differences(Recipe(data=["/a/text"], data_sha256="0f", steps=5)) == [
        "data_sha256 = 0f (was f0)",
        "steps = 5 (was 4096)",
    ]


@pytest.mark.parametrize(("text", "expected"), [("0-4", [0, 1, 2, 3, 4]), ("3", [3]), ("2,0-1,2", [0, 1, 2])])
def test_seeds_are_read(text: str, expected: list[int]) -> None:
    assert Recipe(data=["-"], seeds=text).seeds == expected


@pytest.mark.parametrize("text", ["", "a", "4-2", "0,4-2", "1,,2", "0;1"])
def test_bad_seeds_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="seeds"):
        Recipe.check({"data": ["-"], "seeds": text})


def test_a_file_that_is_no_recipe_is_named(tmp_path) -> None:
    (tmp_path / "broken.toml").write_text("hidden = ")
    (tmp_path / "other.toml").write_text('data = ["-"]\nhiden = 5\n')
    for name, reason in (("absent.toml", "no such file"), ("broken.toml", "not valid TOML"), ("other.toml", "hidden")):
        with pytest.raises(UsageError, match=reason) as refused:
            Recipe.read(tmp_path / name)
        assert name in str(refused.value)
