"""What the reference says that no docstring does: columns, tensors, keys, and the opening of each page.

`make_reference` looks up every name of the code here: a missing one is an error, not an empty cell.
"""

COLUMN_MEANINGS = {
    "run": "name of the run's folder",
    "model": "name of the model; empty for files of vectors",
    "revision": "branch, tag or commit of a Hub model",
    "step": "step of the training, for checkpoints",
    "site": "where: `embeddings`, `block.3`, `final_norm`, `block.3.head.5`, `vectors` …",
    "layer": "position in the order of computation; `embeddings` is 0",
    "head": "head of an attention layer",
    "metric": "what: a name from the list of metrics",
    "value": "the number; missing where it is undefined",
    "low": "lower end of the 95 % interval",
    "high": "upper end of the 95 % interval",
    "null": "what an isotropic cloud of the same n and d would give",
    "n": "number of vectors (attention rows, draws) behind the value",
    "note": "remarks on this value; for `verdict`, the verdict in one sentence",
    "positions": "`all`, `rest` (without the first position of each window) or `first`",
    "at": "the quantity that a study varies: drift norm N, false-positive rate, dimension, factor",
    "seed": "seed of a draw or of a training",
    "protocol": "what was counted, in words that do not depend on the machine",
    "null_sd": "how far the null strays by chance, as a standard deviation; given for cosines of single heads",
}
TENSOR_MEANINGS = {
    "n": "vectors by group",
    "x": "Σx by group",
    "unit": "Σu by group, u = x/‖x‖",
    "unit2": "Σu∘u",
    "norm": "Σ‖x‖ by group",
    "norm2": "Σ‖x‖² by group",
    "fourth": "ΣΣ_k x_k⁴ by group",
    "energy": "Σ_seq ‖Σ_seq u‖² by group, of closed sequences",
    "pairs": "Σ_seq n_seq² by group, of closed sequences",
    "sequences": "closed sequences by group",
    "second": "Σxxᵀ",
    "single": "vectors whose products are float32 ones in `second`",
    "sketch": "Σx(xᵀΩ), above 4,096 dimensions",
    "square": "Σx∘x, beside the sketch",
    "zero": "zero vectors left out",
    "nonfinite": "vectors with NaN or infinite entries left out",
    "open.keys": "keys of sequences that may still go on (uint64 bits)",
    "open.sums": "their Σu, in `rest` and in `first`",
    "open.counts": "their numbers of vectors, in `rest` and in `first`, and of arrivals",
    "closed.keys": "keys of the last 16,384 sequences that are complete, in order of closing",
    "numbered": "ranges of rows that came without a sequence: first, and one after the last",
    "extremes.greatest": "largest |x| of each dimension, where maxima are kept",
    "extremes.where": "where it was: sequence key (uint64 bits), position, 0",
    "extremes.cells": "histogram of |x| by the upper 13 bits of its float32",
    "meta": "d, groups, whether there is a second moment, seed, how many sequences may be open",
    "reservoir.x": "the sampled vectors, in order of priority",
    "reservoir.keys": "keys of their sequences (uint64 bits)",
    "reservoir.positions": "their places in their sequences",
    "reservoir.first": "whether they are first positions",
    "reservoir.meta": "d, capacity, seed, vectors that float32 cannot hold",
}
MANIFEST_MEANINGS = {
    "sha256": "checksum of this file, computed with 64 zeros in its place",
    "format": "version of this format; readers accept 2, and 1 with a note",
    "command": "the study that made the run",
    "settings": "its settings, as in run.toml",
    "protocol": "what was counted, by model",
    "data": "name, fingerprint (SHA-256 of the contents) and counts of the data, by model",
    "model": "name, revision, family and modality, by model",
    "inputs": "everything that was read, with its fingerprint: models file by file, data, other runs",
    "verdict": "words, deciding numbers and one sentence",
    "verdicts": "the same for each site; of `gate`, each rule with its limits and its outcome",
    "notes": "remarks, as printed",
    "about": "what the sums are of, by model; `merge` reads it",
    "shard": "`0/8` for one share of the data, otherwise null",
    "remarks": "those of the notes that come from sources, not from sums; `merge` keeps them",
    "in_memory": "settings that were Python objects: such a run cannot be repeated from its file",
    "rows": "number of rows of the table",
    "seconds": "how long it took; null where unknown",
    "versions": "of Python and of the libraries that a number may depend on",
    "files": "SHA-256 of every other file of the run",
}
PRINTED = {
    "schema": ({"const": 1}, "version of this schema"),
    "run": ({"type": ["string", "null"]}, "folder of the run"),
    "command": ({"type": "string"}, "the study"),
    "verdict": ({"type": "string"}, "the verdict in a few words"),
    "sentence": ({"type": "string"}, "the verdict in one sentence, with the numbers that decided it"),
    "notes": ({"type": "array", "items": {"type": "string"}}, "remarks that belong to the numbers"),
    "verdicts": ({"type": "array", "items": {"type": "object"}}, "the verdict on each site, or on each rule of `gate`"),
}
PYTHON = {
    "What they return": {
        "anisoscope.results": ("Result",),
        "anisoscope.runs.measurement": ("Measurement",),
        "anisoscope.runs.store": ("Run",),
        "anisoscope.runs.table": ("Row",),
        "anisoscope.inference.verdict": ("Verdict",),
    },
    "During training": {
        "anisoscope.watch.monitor": ("AnisotropyMonitor",),
        "anisoscope.watch.rules": ("Alarm", "alarms_of"),
        "anisoscope.inference.thresholds": ("Band", "Rule"),
    },
    "Sums": {
        "anisoscope.accumulate.moments": ("Moments",),
        "anisoscope.accumulate.sums": ("Sums",),
    },
    "A study of your own": {
        "anisoscope.runs.study": ("Study", "Findings"),
        "anisoscope.runs.settings": ("option", "Settings"),
        "anisoscope.runs.job": ("Job",),
        "anisoscope.inference.metrics.declaration": ("Metric",),
    },
}
FILES = {
    "Unfinished runs": "anisoscope.runs.work.saved",
    "A series of checkpoints": "anisoscope.models.checkpoints",
    "What `pretrain` writes": "anisoscope.models.embedded_series",
    "Where models are found": "anisoscope.models.locate",
    "Vectors": "anisoscope.inputs.vectors.source",
    "Text": "anisoscope.inputs.text",
    "Speech": "anisoscope.inputs.speech",
    "Images": "anisoscope.inputs.images",
}

COMMANDS = """\
`anisoscope COMMAND --help` prints what is listed here. With `--json`, standard output holds exactly one object
(of a study: [schema](schema.json)); progress goes to standard error. A list is written with commas or by repeating
the option. Exit codes are under [Errors](errors.md)."""

TABLE = """\
One row is one measurement: a metric at a site, with its interval, its isotropic null, its n and its protocol. A missing
number is null in Parquet and in JSON, never 0 and never NaN. Every run folder holds the table as
`measurements.parquet`; every study prints it with `--json` ([schema](schema.json)) and writes it with `--csv`."""

METRICS = """\
Each metric is declared once, in `anisoscope.inference.metrics`. The first groups are measured for every cloud of
vectors, whatever the command; [Metrics](../metrics.md) has their formulas and nulls, and the clouds that fool them. The
other groups belong to single studies ([Studies and settings](settings.md)). `cosine_share` has one row for each of the
top dimensions, with the dimension in `at`; `verdict` has no value, only a sentence in `note`."""

PLANS = """\
A study is asked the same things on the command line (`--limit 8`), in a TOML file (`limit = 8`) and in Python
(`limit=8`), checked by the same code. Every run writes a `run.toml` that repeats it; `anisoscope run run.toml` performs
any such file:

```toml
command = "vectors"

[settings]
files = ["embeddings.npy"]
neighbours = false
```

A setting that is left out has its default; an unknown one is an error that names the nearest known one."""

MACHINE = """\
Where and how fast a study runs. These are options of the commands and keywords of the Python functions, but not
settings: no number may depend on them, and `run.toml` does not hold them."""

API = """\
`import anisoscope` imports nothing heavy. There is one function per study, each with the settings of its command as
keywords ([Studies and settings](settings.md)), plus those of the machine (`device`, `batch_tokens`, …), `out`,
`existing` and `figures`. Arrays, modules and lists of texts are accepted wherever a file or a name is."""

ERRORS = """\
Every error derives from `AnisoscopeError`; its attributes are `what`, `where`, `got`, `expected` and `do`. The command
line prints the message without a traceback; `--debug` shows it.

| exit code | means |
|---|---|
| 0 | done |
| 1 | the job failed: unreadable data, a broken model, a full disk, a damaged run |
| 2 | bad use: an unknown option or value, contradictory arguments |
| 130, 143 | stopped by Ctrl-C or SIGTERM, with the state saved; the same command continues |

`gate` also ends with 1 where a rule fails, and with 2 where the data cannot say."""

MOMENTS = """\
The sums of one cloud, as flat tensors that merge by addition. A run holds those of every site under
`MODEL|OBSERVER|SITE|TENSOR`. d is the dimension, g the number of jackknife groups, m the size of the sample, s and c
the numbers of open and closed sequences. Each tensor `rest.…` (all positions but the first) has a counterpart `first.…`
(the first of each window); `cross.…` holds what joins the two within a sequence. Queries, keys and attention rows are
stored in the same way."""

SERIES = """\
A list of your own:

```toml
name = "my training"

[[checkpoints]]
step = 0
model = "checkpoints/start"

[[checkpoints]]
step = 1000
model = "owner/name"
revision = "step1000"
```"""
