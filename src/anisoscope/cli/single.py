"""One function as one command of typer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import typer
from typer.core import TyperCommand


class _Command(TyperCommand):
    """Its help lists an argument by name: typer adds the Python type, such as `<list[str]>`, whatever the metavar."""

    def get_params(self, ctx: Any) -> list[Any]:
        found = super().get_params(ctx)
        for one in found:
            if one.param_type_name == "argument":
                several = "..." if one.nargs != 1 else None
                one.display_type_rich = lambda ctx, several=several: several  # pyright: ignore[reportAttributeAccessIssue]
        return found


def single(name: str, summary: str, function: Callable[..., None]) -> Any:
    made = typer.Typer(add_completion=False, rich_markup_mode=None)
    made.command(name, cls=_Command, short_help=summary)(function)
    return typer.main.get_command(made)
