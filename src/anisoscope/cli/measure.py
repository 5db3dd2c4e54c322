"""`anisoscope measure MODEL…`"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from anisoscope.cli.output import Csv, ExistingOption, Json, Out, existing_policy, finish, say_figures


def complete_model(incomplete: str) -> list[str]:
    """Names of the catalogue, for the shell's tab key."""
    from anisoscope.models.catalogue import catalogue

    return [entry.id for entry in catalogue() if entry.id.startswith(incomplete)]


Models = Annotated[
    list[str],
    typer.Argument(
        help="Hub ids, folders or GGUF files; `anisoscope models` lists those of the papers.",
        autocompletion=complete_model,
    ),
]
Data = Annotated[
    list[str] | None,
    typer.Option("--data", "-d", help="Files, folders, globs, - or hf:NAME; embedded data without it."),
]
ModelsDir = Annotated[Path | None, typer.Option(help="Mirror laid out as owner/name[@revision], looked in first.")]
Device = Annotated[str, typer.Option(help="cpu, cuda, cuda:1, mps …")]
BatchTokens = Annotated[int | None, typer.Option(help="Padded positions in a batch (default 8192).", min=1)]
TrustRemoteCode = Annotated[
    bool, typer.Option("--trust-remote-code", help="Allow the model's own Python files to run.")
]


def measure(
    models: Models,
    data: Data = None,
    revision: Annotated[str | None, typer.Option(help="Branch, tag or commit of a hub model.")] = None,
    tower: Annotated[str | None, typer.Option(help="text or vision, of a model of both.")] = None,
    modality: Annotated[str | None, typer.Option(help="text, speech or vision, where the model does not say.")] = None,
    sites: Annotated[list[str] | None, typer.Option(help="Patterns of sites: 'block.*', final_norm …")] = None,
    specials: Annotated[str, typer.Option(help="Special tokens: keep (as the paper) or drop.")] = "keep",
    maps: Annotated[
        str, typer.Option(help="Convolutional maps: positions (one vector each) or flatten (one an image).")
    ] = "positions",
    whisper_window: Annotated[str, typer.Option(help="Whisper's encoder: states that hear speech, or all.")] = "speech",
    length: Annotated[
        float | None, typer.Option(help="Window in tokens (default 512), or in seconds for speech.")
    ] = None,
    limit: Annotated[int | None, typer.Option(help="At most so many documents, clips or images.", min=1)] = None,
    documents: Annotated[
        str, typer.Option(help="How a text file splits: auto, file, lines, blank, wikitext.")
    ] = "auto",
    column: Annotated[str | None, typer.Option(help="Text column of a table.")] = None,
    spectrum: Annotated[bool, typer.Option(help="Measure the covariance spectrum too.")] = True,
    neighbours: Annotated[bool, typer.Option(help="Measure neighbourhoods too (on a sample).")] = True,
    sample: Annotated[int, typer.Option(help="Vectors kept at each site for what is no sum.", min=64)] = 4096,
    seed: Annotated[int, typer.Option(help="Seed of the sample.")] = 0,
    dtype: Annotated[
        str, typer.Option(help="Precision of the model: float32, float64, bfloat16, float16.")
    ] = "float32",
    device: Device = "cpu",
    batch_tokens: BatchTokens = None,
    models_dir: ModelsDir = None,
    trust_remote_code: TrustRemoteCode = False,
    figures: Annotated[bool, typer.Option(help="Draw the figures.")] = True,
    out: Out = None,
    csv: Csv = None,
    existing: ExistingOption = "resume",
    json: Json = False,
) -> None:
    """How anisotropic each layer of a model is, of any modality, with intervals and nulls; then the drift tests.

    A killed run continues where it was when the same command is given again.

    \b
    Examples:
      anisoscope measure bert-base-uncased --data wikitext/valid.txt
      anisoscope measure gpt2 EleutherAI/pythia-70m --data texts/ --limit 200
      anisoscope measure openai/whisper-base --data recordings/ --whisper-window all
      anisoscope measure microsoft/resnet-50 --data photos/ --maps flatten
    """
    from anisoscope.studies.measure.study import Machine, MeasureSettings, measure_models

    settings = MeasureSettings(
        models=models, revision=revision, tower=tower, modality=modality, data=data or [], documents=documents,
        column=column, length=length, limit=limit, sites=sites or ["*"], specials=specials, maps=maps,
        whisper_window=whisper_window, spectrum=spectrum, neighbours=neighbours, sample=sample, seed=seed, dtype=dtype,
    )  # fmt: skip
    machine = Machine(device, batch_tokens, models_dir, trust_remote_code)
    measurement = measure_models(settings, machine=machine, out=out, existing=existing_policy(existing))
    finish(measurement, as_json=json, csv=csv, title=f"measure: {', '.join(models)}")
    if figures and measurement.run is not None:
        from anisoscope.report.figures.layers import figures_of_layers

        say_figures(measurement.run, figures_of_layers(measurement.run), quiet=json)
