"""At which scale the figures are made: which models and data stand under them, and how that is described.

| scale | models | data |
|---|---|---|
| `demo` | stand-ins, made or trained on the spot | what is embedded, unless named |
| `local` | real weights of the same families that lie in `models_dir` | the same |
| `hub` | the published checkpoints | the papers' text; speech and images have to be named |
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from anisoscope.errors import UsageError
from anisoscope.models import catalogue
from anisoscope.models.locate import in_mirror
from anisoscope.studies.paper import recipes
from anisoscope.studies.paper.checks.evidence import short_name
from anisoscope.studies.paper.stand_ins import stand_in_name

Name = Literal["demo", "local", "hub"]
Protocol = Literal["ours", "paper"]


def _shown(place: str) -> str:
    """A place of data as a figure names it: a path without the folders that are this machine's own.

    >>> _shown("/home/me/data/wikitext/valid.txt"), _shown("hf:wikitext")
    ('wikitext/valid.txt', 'hf:wikitext')
    """
    path = Path(place)
    return "/".join(path.parts[-2:]) if path.is_absolute() else place


@dataclass(frozen=True)
class Scale:
    """The scale, the protocol, where the data of each kind lies, and the folder of models."""

    name: Name
    text: tuple[str, ...] = ()
    speech: tuple[str, ...] = ()
    images: tuple[str, ...] = ()
    protocol: Protocol = "ours"
    models_dir: str | None = None

    def data(self, kind: str) -> list[str]:
        """The places of data of this kind; empty for what is embedded."""
        places = list(getattr(self, kind))
        known = recipes.data(kind)
        if places or self.name != "hub":
            return places
        if "hub" in known:
            return [known["hub"]]
        raise UsageError(
            f"this figure needs {kind}",
            expected=f"{known['paper']}; {known['substitute']}",
            do=f"name a folder: --{kind} FOLDER",
        )

    def about_data(self, kind: str) -> str:
        """What is read in place of the paper's data; empty where it is the paper's."""
        places, known = list(getattr(self, kind)), recipes.data(kind)
        if not places and self.name == "hub":
            return ""
        named = ", ".join(map(_shown, places)) or f"embedded {kind}"
        return f"{named} in place of {known['paper']}"

    def about_run_data(self, name: str) -> list[str]:
        """The same for a run: what its models read, and which of them read other data."""
        kind = recipes.runs()[name].get("data")
        if kind is None:
            return []
        apart = {model: self.own_data(model) for model in self.models(name)}
        told = [self.about_data(kind)] if not apart or not all(apart.values()) else []
        told += [
            f"{', '.join(map(_shown, own['data']))} for {short_name(model)}" for model, own in apart.items() if own
        ]
        return [words for words in told if words]

    def settings(self, name: str) -> dict[str, Any]:
        """The settings of a run at this scale and under this protocol, without its models."""
        recipe = recipes.runs()[name]
        found = {**recipe.get("settings", {}), **recipe.get(self.name, {})}
        if self.protocol == "paper":
            found |= recipe.get("paper", {})
        found.pop("models", None)
        if "data" in recipe:
            found["data"] = self.data(recipe["data"])
        return found

    def models(self, name: str) -> list[str]:
        """The models of a run at this scale; at `local`, those that are at hand."""
        recipe = recipes.runs()[name]
        if self.name == "local":
            return [one.id for one in self.at_hand() if name in one.runs]
        published = list(recipe.get(self.name, {}).get("models", recipe.get("models", ())))
        return [stand_in_name(model) for model in published] if self.name == "demo" else published

    def pinned(self, model: str, models_dir: str | None) -> dict[str, list[str]]:
        """A model under its own name, at the commit of the paper's protocol unless a mirror holds it."""
        revision = recipes.read("runs")["revisions"].get(model)
        free = self.name != "hub" or self.protocol != "paper" or revision is None
        if free or in_mirror(model, models_dir=models_dir) is not None:
            return {"models": [model]}
        return {"models": [f"{model}@{revision}"], "name": [model]}

    def at_hand(self) -> list[recipes.LocalModel]:
        """The real weights that lie in the folder of models."""
        return [
            one
            for one in recipes.local_models()
            if in_mirror(one.id, models_dir=self.models_dir) is not None
            and (not one.data or (Path(self.models_dir or ".") / one.data).exists())
        ]

    def own_data(self, model: str) -> dict[str, list[str]]:
        """The data of a model that reads something else than its figure's."""
        found = [one for one in self.at_hand() if one.id == model and one.data] if self.name == "local" else []
        return {"data": [str(Path(self.models_dir or ".") / found[0].data)]} if found else {}

    def stands_for(self) -> Mapping[str, tuple[str, ...]]:
        """Which models of the paper a model at hand may stand for, by short name."""
        return {short_name(one.id): one.stands_for for one in self.at_hand()} if self.name == "local" else {}

    def marks(self, figure: recipes.Figure) -> dict[str, dict[str, str]]:
        """At `local`: whose model each one under a figure is, and what it is."""
        if self.name != "local":
            return {}
        mine = [one for one in self.at_hand() if set(one.runs) & set(figure.runs)]
        return {one.id: {"whose": one.mark, "about": one.about} for one in mine}

    def not_testable(self, figure: recipes.Figure) -> str:
        """Why nothing at hand can stand under a figure; empty where something can."""
        if self.name != "local" or figure.modelless:
            return ""
        if "training" in figure.runs:
            return "not testable here: no series of checkpoints of a real training is at hand"
        if any(self.models(name) for name in figure.runs if "models" in recipes.runs()[name]) or "null" in figure.runs:
            return ""
        return f"not testable here: no model of this figure lies in {self.models_dir or 'a folder of models'}"


def along_training(model: str) -> list[str]:
    """The checkpoints of a published model by name, or the model alone where its training was not published."""
    try:
        published = catalogue.lookup(model).series is not None
    except UsageError:
        return [model]
    if not published:
        return [model]
    return [f"{one.model}@{one.revision}" for one in catalogue.series(model, steps="paper")]
