"""From settings to a command line: every option, its type, its help and its choices come from the fields.

A wrong value is not judged here but by the settings themselves, so that the command line, TOML and Python refuse alike.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

import typer

from anisoscope.runs.settings import Settings, choices_of

_PLAIN = (bool, int, float, str)
_SINGULAR = {"models": "MODEL", "files": "FILE", "runs": "RUN"}


def parameters(settings: type[Settings], only: Iterable[str] | None = None) -> list[inspect.Parameter]:
    """The parameters of a command that asks for these settings, arguments first."""
    names = _in_order(settings) if only is None else [name for name in only if name in settings.model_fields]
    found = [_parameter(name, settings.model_fields[name]) for name in names]
    return sorted(found, key=lambda one: not isinstance(get_args(one.annotation)[1], typer.models.ArgumentInfo))


def _in_order(settings: type[Settings]) -> list[str]:
    """The fields as a person reads the declaration: those of each part in turn, then the study's own."""
    parts = [base for base in settings.__bases__ if issubclass(base, Settings)]
    inherited = [name for part in parts for name in _in_order(part)]
    return list(dict.fromkeys([*inherited, *settings.model_fields]))


def _parameter(name: str, field: Any) -> inspect.Parameter:
    extra = _extra(field)
    kind, several = _type(field.annotation)
    required = field.is_required()
    default = None if required or several else field.get_default(call_default_factory=True)
    choices = choices_of(field.annotation)
    given: dict[str, Any] = {"help": _help(field, several, default), "show_default": default is not None}
    if choices:
        given["metavar"] = extra.get("metavar") or "|".join(map(str, choices))
        given["autocompletion"] = lambda incomplete: [str(c) for c in choices if str(c).startswith(incomplete)]
    elif kind is not bool:
        number = kind in (int, float) or _numbers(field.annotation)
        plain = _SINGULAR.get(name, name.upper()) if extra.get("argument") else "N" if number else "TEXT"
        given["metavar"] = extra.get("metavar") or plain
    if extra.get("complete") and not choices:
        given["autocompletion"] = _models
    annotation = list[str] if several else bool if kind is bool else str
    if extra.get("argument"):
        declared = typer.Argument(**given)
    else:
        flags = [f"--{name.replace('_', '-')}"] + ([extra["short"]] if extra.get("short") else [])
        if kind is bool:
            flags[0] += f"/--no-{name.replace('_', '-')}"
            given["show_default"] = True
        declared = typer.Option(*flags, **given)
        annotation = annotation if kind is bool else annotation | None
    return inspect.Parameter(
        name,
        inspect.Parameter.KEYWORD_ONLY,
        default=inspect.Parameter.empty if required else default,
        annotation=Annotated[annotation, declared],
    )


def _extra(field: Any) -> dict[str, Any]:
    """What `option` said about a field for the command line."""
    return dict(field.json_schema_extra or {})


def _help(field: Any, several: bool, default: Any) -> str:
    text = field.description or ""
    if several and not field.is_required():
        usual = field.get_default(call_default_factory=True)
        shown = ",".join(f"{one:g}" if isinstance(one, float) else str(one) for one in usual or ())
        text += f"  [default: {shown}]" if shown else ""
        text += "  (may be repeated)"
    return text


def _type(annotation: Any) -> tuple[type, bool]:
    """The plain type that the command line reads, and whether it is a list."""
    if get_origin(annotation) in (Union, UnionType):
        inner = [part for part in get_args(annotation) if part is not type(None)]
        return _type(inner[0])
    if get_origin(annotation) is Annotated:
        return _type(get_args(annotation)[0])
    if get_origin(annotation) in (list, tuple, dict):
        return str, True
    return (annotation, False) if annotation in _PLAIN else (str, False)


def _models(incomplete: str) -> list[str]:
    """What completes the name of a model."""
    from anisoscope.models.catalogue import catalogue

    return [entry.id for entry in catalogue() if entry.id.startswith(incomplete)]


def values_of(settings: type[Settings], given: Mapping[str, Any]) -> dict[str, Any]:
    """What was written on the command line, as values for the settings; what was not written is left out."""
    found: dict[str, Any] = {}
    for name, field in settings.model_fields.items():
        value = given.get(name)
        if value is None or value == [] or str(value) == str(field.get_default(call_default_factory=True)):
            continue
        extra = _extra(field)
        if isinstance(value, list) and (
            extra.get("commas") or _numbers(field.annotation) or choices_of(field.annotation)
        ):
            value = [part.strip() for one in value for part in str(one).split(",") if part.strip()]
        if get_origin(field.annotation) is dict:
            value = dict(map(_assigned, value))
        found[name] = value
    return found


def _numbers(annotation: Any) -> bool:
    """Whether a list holds numbers, which no comma can be part of."""
    inner = get_args(annotation)
    return bool(inner) and (inner[0] in (int, float) or any(map(_numbers, inner)))


def _assigned(text: str) -> tuple[str, Any]:
    """`name=value` with the value as TOML has it, or as plain text."""
    import tomllib

    from anisoscope.errors import UsageError

    name, equals, value = str(text).partition("=")
    if not equals:
        raise UsageError("cannot read this field", got=text, expected="name=value, such as hidden=96")
    try:
        return name, tomllib.loads(f"value = {value}")["value"]
    except (tomllib.TOMLDecodeError, RecursionError):
        return name, value


def asking(
    parameters: list[inspect.Parameter], help: str, run: Callable[[dict[str, Any]], None]
) -> Callable[..., None]:
    """A function as typer takes it, with these parameters and this help."""

    def function(**given: Any) -> None:
        run(given)

    function.__signature__ = inspect.Signature(parameters)  # pyright: ignore[reportFunctionMemberAccess]
    function.__annotations__ = {one.name: one.annotation for one in parameters}
    function.__doc__ = help.strip().replace("\nExamples:", "\n\b\nExamples:")  # examples keep their lines
    return function
