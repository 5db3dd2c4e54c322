"""Train small models from scratch, with checkpoints along the way."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from anisoscope.cli.output import Csv, Json, print_json, write_csv


def pretrain(
    data: Annotated[
        list[str] | None,
        typer.Option(help="Text files (repeat the option), one folder of images (a subfolder per class), or `digits`."),
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder for the checkpoints; a training found there goes on.")] = Path(
        "series"
    ),
    recipe: Annotated[
        Path | None, typer.Option(help="A recipe.toml to repeat; options given here override it.")
    ] = None,
    arch: Annotated[str | None, typer.Option(help="bert, gpt2, neox, llama, vit or convnet.")] = None,
    objective: Annotated[
        str | None, typer.Option(help="mlm, clm, headless or classify; by default the usual one.")
    ] = None,
    attention: Annotated[
        str | None,
        typer.Option(help="softmax, softmax_one, sigmoid, cosine, query_centred, gated or no_bias."),
    ] = None,
    tokens: Annotated[str | None, typer.Option(help="bytes, or bpe (trained on the data).")] = None,
    vocabulary: Annotated[int | None, typer.Option(help="Number of tokens, for bpe.")] = None,
    steps: Annotated[int | None, typer.Option(help="Steps of training.")] = None,
    seeds: Annotated[str | None, typer.Option(help="Seeds to train one after the other, as 0,1,2.")] = None,
    layers: Annotated[int | None, typer.Option(help="Blocks.")] = None,
    hidden: Annotated[int | None, typer.Option(help="Width.")] = None,
    heads: Annotated[int | None, typer.Option(help="Attention heads per block.")] = None,
    feedforward: Annotated[int | None, typer.Option(help="Width inside the feed-forward part; 4 × hidden.")] = None,
    length: Annotated[int | None, typer.Option(help="Tokens per sequence, special ones included.")] = None,
    image_size: Annotated[int | None, typer.Option(help="Side of an image in pixels.")] = None,
    patch: Annotated[int | None, typer.Option(help="Side of a patch in pixels.")] = None,
    batch: Annotated[int | None, typer.Option(help="Sequences or images per step.")] = None,
    learning_rate: Annotated[float | None, typer.Option(help="Highest learning rate, of AdamW.")] = None,
    schedule: Annotated[str | None, typer.Option(help="linear, cosine or constant, after the warm-up.")] = None,
    warmup: Annotated[int | None, typer.Option(help="Steps over which the learning rate rises.")] = None,
    mask: Annotated[float | None, typer.Option(help="Share of tokens to predict, for masked models.")] = None,
    dropout: Annotated[float | None, typer.Option(help="Dropout everywhere.")] = None,
    first_checkpoint: Annotated[int | None, typer.Option(help="First step of the log grid, after step 0.")] = None,
    per_doubling: Annotated[int | None, typer.Option(help="Checkpoints per doubling of the step.")] = None,
    save_every: Annotated[int | None, typer.Option(help="Steps between states to go on from.")] = None,
    threads: Annotated[int | None, typer.Option(help="CPU threads; all by default.", min=1)] = None,
    csv: Csv = None,
    json: Json = False,
) -> None:
    """Train a small model from scratch and keep checkpoints on a log grid, step 0 included.

    The folder OUT holds recipe.toml, which repeats the training, and per seed a log and checkpoint folders that
    transformers and every anisoscope command read. A training that was killed goes on when the command is repeated,
    to the same weights.

    \b
    Examples:
      anisoscope pretrain --arch bert --data enwik8 --steps 8192 --seeds 0,1 --out series
      anisoscope pretrain --arch gpt2 --attention gated --data book.txt --steps 2000 --out gated
      anisoscope pretrain --arch vit --data digits --steps 1000 --out digits
      anisoscope pretrain --recipe series/recipe.toml --seeds 2 --out series
    """
    given: dict[str, Any] = {
        name: value
        for name, value in locals().items()
        if name not in ("out", "recipe", "threads", "csv", "json") and value is not None
    }
    from anisoscope.training.pretrain import pretrain as train
    from anisoscope.training.recipe import Recipe, make_recipe, parse_seeds
    from anisoscope.training.series import log_rows

    if seeds is not None:
        given["seeds"] = parse_seeds(seeds)
    known = Recipe.read(recipe).model_dump() if recipe else {}
    chosen = make_recipe(**{**known, **given})
    if threads is not None:
        import torch

        torch.set_num_threads(threads)
    checkpoints = train(chosen, out, announce=lambda line: typer.echo(line, err=True))
    rows = [row for seed in chosen.seeds for row in log_rows(out, seed)]
    last = [row for row in rows if row.metric == "validation_loss" and row.step == chosen.steps]
    verdict = ", ".join(f"seed {row.seed}: validation loss {row.value:.4f}" for row in last)
    if csv is not None:
        write_csv(csv, rows)
    if json:
        print_json({"run": str(out), "verdict": verdict, "measurements": [row.as_dict() for row in rows]})
    else:
        typer.echo(f"{len(checkpoints)} checkpoints in {out}; {verdict}")
