"""The words of the reference that no docstring holds: columns, tensors, keys, arrays, and what opens a section.

`make_reference` looks every name of the code up here: one that is missing is an error, not an empty cell.
"""

COLUMN_MEANINGS = {
    "run": "name of the run's folder",
    "model": "name of the model; empty for files of vectors",
    "revision": "branch, tag or commit of a hub model",
    "step": "step of the training, for checkpoints",
    "site": "where: `embeddings`, `block.3`, `final_norm`, `block.3.head.5`, `vectors` …",
    "layer": "place in the order of computation, `embeddings` being 0",
    "head": "head of an attention layer",
    "metric": "what: a name of the tables below",
    "value": "the number; missing where it is undefined",
    "low": "lower end of the 95 % interval",
    "high": "upper end of the 95 % interval",
    "null": "what an isotropic cloud of the same n and d would give",
    "n": "vectors (rows of attention, draws) that the value rests on",
    "note": "what must be said about it; for `verdict` the verdict itself",
    "positions": "`all`, `rest` (without the first position of each window) or `first`",
    "at": "what a study sweeps: drift norm N, false-positive rate, dimension, factor",
    "seed": "seed of a draw or of a training",
    "protocol": "what counted, in words that do not depend on the machine",
}
TENSOR_MEANINGS = {
    "n": "vectors by group",
    "x": "Σx by group",
    "unit": "Σu by group, u = x/‖x‖",
    "unit2": "Σu∘u",
    "norm": "Σ‖x‖ by group",
    "norm2": "Σ‖x‖² by group",
    "energy": "Σ_seq ‖Σ_seq u‖² by group, of closed sequences",
    "pairs": "Σ_seq n_seq² by group, of closed sequences",
    "sequences": "closed sequences by group",
    "second": "Σxxᵀ",
    "zero": "zero vectors left out",
    "nonfinite": "vectors with NaN or infinite entries left out",
    "open.keys": "keys of sequences that may still go on (uint64 bits)",
    "open.sums": "their Σu, in `rest` and in `first`",
    "open.counts": "their numbers of vectors, in `rest` and in `first`, and of arrivals",
    "closed.keys": "keys of the last 16,384 sequences that are complete, in order of closing",
    "numbered": "ranges of rows that came without a sequence: first, and one after the last",
    "meta": "d, groups, whether there is a second moment, seed, how many sequences may be open",
    "reservoir.x": "the sampled vectors, in order of priority",
    "reservoir.keys": "keys of their sequences (uint64 bits)",
    "reservoir.positions": "their places in their sequences",
    "reservoir.first": "whether they are first positions",
    "reservoir.meta": "d, capacity, seed, vectors that float32 cannot hold",
}
MANIFEST_MEANINGS = {
    "format": "version of this format; a reader refuses another",
    "command": "the command that made the run",
    "settings": "its settings, as in run.toml",
    "protocol": "what counted, by model",
    "data": "name, fingerprint (SHA-256 of the contents) and counts of the data, by model",
    "model": "name, revision, family and modality, by model",
    "verdict": "the verdict in words",
    "notes": "what had to be said",
    "rows": "number of rows of the table",
    "seconds": "how long it took; null where that is not known",
    "versions": "of Python and the libraries that a number may depend on",
}
ARRAYS = {
    "calibrate": "`edges` (201,); `histogram.CORRECTION` (200,), densities of the floor; `null` (200,)",
    "null": "`cosine` (2001,), `density.D` (2001,) for each dimension D",
    "attention": "`LAYER.query`, `LAYER.key`, `LAYER.q_filter`: the drift direction of every head",
    "block": "`LABEL/norms`; by draw `LABEL/scores_edges` (`_counts`, `_by_head`), `LABEL/query_mean` (`_expected`) …",
    "vocabulary": "`STEP/SITE/points`, `STEP/SITE/eigenvalues`, the same with `.centred`, and `STEP/SITE/counts`",
    "sweep": "queries and keys along the steps: next section",
}

TABLE = """\
One row is one measurement: a metric at a site, with its interval, its isotropic null, its n and its protocol. A missing
number is null in Parquet and in JSON, never 0 and never NaN. Every run folder holds the table as
`measurements.parquet`, every command prints it with `--json` and writes it with `--csv`."""

METRICS = """\
Declared once, in `anisoscope.inference.metrics`. The first four groups are measured of every cloud, whatever the
command; [Metrics](../metrics.md) has their formulas and nulls, and the clouds that fool them. The other groups belong
to single studies ([Studies and plans](plans.md)). `cosine_share` has one row for each of the top dimensions, the
dimension in `at`; `verdict` has no value, its `note` says it."""

PLANS = """\
Every run writes the plan that makes it again: `run.toml`, with the name of a command and its settings.
`anisoscope run run.toml` performs it, whoever wrote it:

```toml
command = "vectors"

[settings]
files = ["embeddings.npy"]
neighbours = false
```

A setting that is left out has its default; an unknown one is an error that names it. Device, batch size, mirror of
models and permission to run remote code are no settings: no number may depend on them."""

MOMENTS = """\
The sums of one cloud, as flat tensors that merge by addition (`Moments.from_state(…)`, `merge`). A run of a model holds
those of every site under `SITE|TENSOR` (`MODEL|SITE|TENSOR` where it has several models); `split_states` takes them
apart. d is the dimension, g the number of jackknife groups, m the size of the sample, s and c the numbers of open and
closed sequences. Each tensor `rest.…` (positions other than the first) has its equal `first.…` (the first of each
window); `cross.…` holds what joins the two within a sequence. Attention runs store queries, keys and rows likewise."""

SERIES = """\
A list of one's own:

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
