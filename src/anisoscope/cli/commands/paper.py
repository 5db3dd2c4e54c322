"""The figures of the two papers, and whether what they say about them holds."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from anisoscope.cli.flags import Json
from anisoscope.cli.study import existing_option

if TYPE_CHECKING:
    from collections.abc import Sequence

    from anisoscope.studies.paper.study import Result, Scale


Named = Annotated[
    list[str] | None, typer.Argument(metavar="FIGURE", help="Figures by name, such as 1 6a 13 M2; all by default.")
]
AtScale = Annotated[
    str,
    typer.Option(
        help="demo: small stand-ins, offline. local: real weights of the same families that lie in --models-dir. "
        "hub: the published checkpoints.",
        metavar="demo|local|hub",
    ),
]
ByProtocol = Annotated[
    str,
    typer.Option(
        help="ours: raw states and norms apart, permutation tests. "
        "paper: the library's hidden states, one text per sample, asymptotic p-values.",
        metavar="ours|paper",
    ),
]
Mirror = Annotated[
    Path | None, typer.Option(help="Mirror of models to look in first, laid out as owner/name[@revision].")
]
Text = Annotated[
    list[str] | None, typer.Option(metavar="PATH", help="Text to read (default at hub scale: WikiText-103).")
]
Speech = Annotated[
    list[str] | None, typer.Option(metavar="PATH", help="Folder of speech, such as Common Voice validation.")
]
Images = Annotated[
    list[str] | None, typer.Option(metavar="PATH", help="Folder of images, such as ImageNet validation.")
]
Device = Annotated[str, typer.Option(help="Where models run, such as cpu or cuda.")]
Trust = Annotated[
    bool, typer.Option("--trust-remote-code", help="Run code that comes with a checkpoint (CrystalCoder).")
]
Out = Annotated[Path, typer.Option("--out", "-o", help="Folder for runs, figures and the page.")]


def paper(
    figures: Named = None,
    scale: AtScale = "demo",
    protocol: ByProtocol = "ours",
    models_dir: Mirror = None,
    text: Text = None,
    speech: Speech = None,
    images: Images = None,
    device: Device = "cpu",
    trust_remote_code: Trust = False,
    out: Out = Path("paper"),
    existing: Annotated[str, existing_option()] = "resume",
    json: Json = False,
) -> None:
    """Make the figures of the two papers, and test what each paper says about them.

    Runs are kept and reused: repeat the command to continue after an interruption, or to redraw in seconds.

    \b
    Examples:
      anisoscope paper                         # all, with stand-ins, offline; then open paper/index.html
      anisoscope paper 6a 17                   # the untrained block and the isotropic null: no stand-in needed
      anisoscope paper 3a 4 --scale local --models-dir real --speech real/data/sounds --images real/data/photographs
      anisoscope paper 1 13 --scale hub --models-dir /mirror --out paper-hub
    """
    from anisoscope.cli.output import print_json, say
    from anisoscope.report.page.paper import write_paper_page
    from anisoscope.runs.progress import track
    from anisoscope.runs.settings import Machine
    from anisoscope.runs.store import checked_existing
    from anisoscope.studies.paper.study import choose, describe, perform

    mirror = None if models_dir is None else str(models_dir)
    at = _scale(scale, protocol, mirror, text=text, speech=speech, images=images)
    machine = Machine(device=device, models_dir=mirror, trust_remote_code=trust_remote_code)
    results = perform(
        choose(figures or []),
        at,
        out=out,
        machine=machine,
        existing=checked_existing(existing),
        announce=lambda line: say(line, err=True),
    )
    with track("drawing", total=len(results), unit="figures") as bar:
        page, pictures = write_paper_page(out, advance=bar.advance)
    if json:
        print_json({"run": str(out), "page": str(page), "figures": [describe(result, out) for result in results]})
        return
    _show(results)
    say(f"page: {page}")
    say(f"figures: {pictures} as SVG, PDF and PNG, {out / 'figures'}")


def _scale(name: str, protocol: str, mirror: str | None, **places: list[str] | None) -> Scale:
    """The scale that was asked for, or an error that says what there is."""
    from anisoscope.errors import UsageError
    from anisoscope.studies.paper.study import Scale

    if name not in ("demo", "local", "hub"):
        raise UsageError("unknown scale", got=name, expected="demo, local or hub")
    if protocol not in ("ours", "paper"):
        raise UsageError("unknown protocol", got=protocol, expected="ours or paper")
    if name == "local" and mirror is None:
        raise UsageError("the scale local needs a folder of models", do="name it: --models-dir FOLDER")
    kinds = {kind: tuple(found or ()) for kind, found in places.items()}
    return Scale(name, **kinds, protocol=protocol, models_dir=mirror)


def _show(results: Sequence[Result]) -> None:
    """One line per figure, and what does not hold."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    from anisoscope.studies.paper.study import status

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("figure", "what", "status", "hold", "fail", "untested"):
        table.add_column(name, min_width=25 if name == "what" else None)
    for result in results:
        told = [tested.seen.holds for tested in result.tested]
        counts = [str(told.count(kind)) if told else "" for kind in (True, False, None)]
        table.add_row(result.figure.name, result.figure.title, status(result), *counts)
    Console().print(table)
