"""Fit a correction of embeddings, apply it to files, export it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from anisoscope.cli.flags import Json

Folder = Annotated[Path, typer.Argument(metavar="REMEDY", help="The folder of `remedy fit`, or a .safetensors file.")]
Side = Annotated[
    str, typer.Option(metavar="document|query", help="Whose vectors: query is for remedies fitted with --queries.")
]
Force = Annotated[bool, typer.Option("--force", help="Overwrite files of another kind.")]


def commands() -> dict[str, Any]:
    """The commands of the group by name; `fit` is a study like any other."""
    from anisoscope.cli.single import single
    from anisoscope.cli.study import study_command

    made = {
        "apply": single("apply", "Apply a remedy to files of vectors.", apply),
        "export": single("export", "Export it to sentence-transformers, FAISS, ONNX or numpy.", export),
    }
    return {"fit": study_command("remedy", called="fit"), **made}


def apply(
    remedy: Folder,
    files: Annotated[list[str], typer.Argument(metavar="FILE", help="Files, folders or globs of vectors.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="The repaired file; a folder for several.")],
    column: Annotated[str | None, typer.Option(help="Column or array that holds the vectors.")] = None,
    side: Side = "document",
    force: Force = False,
    json: Json = False,
) -> None:
    """Apply a remedy to files of vectors: in the format that they came in, other columns kept, in constant memory.

    \b
    Examples:
      anisoscope remedy apply remedy/ embeddings.npy -o repaired.npy
      anisoscope remedy apply remedy/ 'shards/*.parquet' --column embedding -o repaired/
    """
    from anisoscope.cli.output import print_json, say
    from anisoscope.runs.story import number
    from anisoscope.studies.remedy.apply import apply_files
    from anisoscope.studies.remedy.estimator import Remedy

    written = apply_files(Remedy.load(remedy).side(side), files, out, column=column, inputs=[remedy], force=force)
    if json:
        fields = ("rows", "zero", "not_finite", "no_direction", "scale")
        told = [{"file": str(one.path)} | {name: getattr(one, name) for name in fields} for one in written]
        print_json({"schema": 1, "written": told})
        return
    for one in written:
        say(f"{one.path}: {one.rows:,} vectors")
        if one.zero:
            say(f"note: {one.zero:,} were zero, and are now the direction of minus the mean: leave them out")
        if one.not_finite:
            say(f"note: {one.not_finite:,} have NaN or infinite entries, and are NaN")
        if one.another_scale:
            say(
                f"note: these vectors are {number(one.scale)} times as long as those that the remedy was fitted on, "
                "and the mean that it takes away is not theirs: bring both to one scale"
            )
        if one.no_direction:
            say(f"note: {one.no_direction:,} have no direction after the remedy, and are zero: leave them out")


def export(
    remedy: Folder,
    to: Annotated[str, typer.Option("--to", metavar="sentence-transformers|faiss|onnx|numpy", help="The format.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="The file, or the folder of the model.")],
    model: Annotated[str | None, typer.Option(help="The model to repair, if the remedy was not fitted on it.")] = None,
    models_dir: Annotated[str | None, typer.Option(help="Mirror laid out as owner/name[@revision].")] = None,
    side: Side = "document",
    force: Force = False,
) -> None:
    """Export a remedy: into a sentence-transformers model, a FAISS index, ONNX, or a few lines of numpy.

    \b
    Examples:
      anisoscope remedy export remedy/ --to sentence-transformers -o repaired-model/
      anisoscope remedy export remedy/ --to faiss -o empty.index
    """
    from anisoscope.cli.output import say
    from anisoscope.errors import UsageError
    from anisoscope.runs.settings import nearest
    from anisoscope.studies.remedy.estimator import Remedy
    from anisoscope.studies.remedy.export import TARGETS
    from anisoscope.studies.remedy.export import export as write

    if to not in TARGETS:
        raise UsageError("no such format", got=to, expected=", ".join(TARGETS), do=nearest(to, TARGETS)[2:] or None)
    found, options = Remedy.load(remedy).side(side), {"models_dir": models_dir, "inputs": [remedy], "force": force}
    for path in write(found, to, out, model=model, **options):  # pyright: ignore[reportArgumentType]  # checked above
        say(str(path))
