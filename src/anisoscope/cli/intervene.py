"""`anisoscope intervene MODEL`"""

from __future__ import annotations

from typing import Annotated

import typer

from anisoscope.cli.attention import BeforeRotary, Documents
from anisoscope.cli.measure import BatchTokens, Data, Device, ModelsDir, TrustRemoteCode, complete_model
from anisoscope.cli.output import Csv, ExistingOption, Json, Out, existing_policy, finish


def intervene(
    model: Annotated[str, typer.Argument(help="A causal or masked language model.", autocompletion=complete_model)],
    data: Data = None,
    what: Annotated[list[str] | None, typer.Option(help="Interventions (default: all that the model allows).")] = None,
    layers: Annotated[str, typer.Option(help="Pattern of the blocks to change, all at once.")] = "*block.*",
    before_rotary: BeforeRotary = False,
    documents: Documents = "auto",
    length: Annotated[int | None, typer.Option(help="Window in tokens (default 512).")] = None,
    limit: Annotated[int | None, typer.Option(help="At most so many documents.", min=1)] = None,
    head: Annotated[bool, typer.Option(help="Open the model with its language-model head, to see the loss.")] = True,
    seed: Annotated[int, typer.Option(help="Seed of the controls' directions.")] = 0,
    device: Device = "cpu",
    batch_tokens: BatchTokens = None,
    models_dir: ModelsDir = None,
    trust_remote_code: TrustRemoteCode = False,
    out: Out = None,
    csv: Csv = None,
    existing: ExistingOption = "resume",
    json: Json = False,
) -> None:
    """Take a part of the drift away while the model runs, and see what it was for: loss, KL, entropy, cosine.

    \b
    Examples:
      anisoscope intervene gpt2 --data texts/ --limit 20
      anisoscope intervene bert-base-uncased --what mean_query --what mean_key --layers 'block.[0-3]'
      anisoscope intervene EleutherAI/pythia-70m --before-rotary --what mean_query
    """
    from anisoscope.studies.interventions_run import InterveneSettings, intervene_model
    from anisoscope.studies.layers import Machine

    chosen = {} if not what else {"what": what}
    settings = InterveneSettings(
        model=model, data=data or [], documents=documents, layers=layers, before_rotary=before_rotary, length=length,
        limit=limit, head=head, seed=seed, **chosen,
    )  # fmt: skip
    machine = Machine(device, batch_tokens, models_dir, trust_remote_code)
    found = intervene_model(settings, machine=machine, out=out, existing=existing_policy(existing))
    finish(found, as_json=json, csv=csv, title=f"intervene: {model}")
