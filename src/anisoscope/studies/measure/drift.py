"""Is anisotropy drift? The paper's test of section 3.3 over the layers of a model, and ours beside it.

The paper correlates the average cosine with the norm of the average vector, ‖x̄‖, over layers (figures 5 and 16). Norms
grow by an order of magnitude along the depth of some models, so ‖x̄‖ says as much about scale as about drift; the drift
ratio ‖x̄‖²/E‖x‖² does not. Both are reported, by Spearman and Pearson, with permutation p-values.
Layers are `embeddings` and every block's raw output; what a final norm makes of the last block, and the vector of a
whole text, are left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np

from anisoscope.inference.correlation import correlate
from anisoscope.runs.table import Row, is_embedding, is_part

AGAINST = ("drift_norm", "drift_ratio")
METHODS = ("spearman", "pearson")


def drift_rows(rows: Sequence[Row]) -> list[Row]:
    """The tests of every model among the rows: correlation, p by permutation, asymptotic p."""
    found = []
    for model in dict.fromkeys(row.model for row in rows):
        mine = [row for row in rows if row.model == model and row.positions == "all"]
        value = {(row.site, row.metric): row.value for row in mine if row.at is None}
        sites = [site for site in _layers(mine) if all((site, name) in value for name in ("mean_cosine", *AGAINST))]
        for against in AGAINST:
            pair = ("mean_cosine", against)
            cosines, drifts = np.array([[value[site, name] for site in sites] for name in pair], float)
            for method in METHODS:
                test = correlate(cosines, drifts, method=method)
                words = f"mean_cosine against {against} over {test.n} layers"
                like = Row(model=model, revision=mine[0].revision, site="layers", n=test.n, note=words)
                like, paper = (replace(like, protocol=how) for how in (test.how, "t distribution, as in the paper"))
                name = f"{method}_{against}"
                found += [
                    replace(like, metric=name, value=test.value, null=0.0),
                    replace(like, metric=f"{name}_p", value=test.p, null=0.5),
                    replace(paper, metric=f"{name}_p_asymptotic", value=test.p_asymptotic, null=0.5),
                ]
    return found


def _layers(rows: Iterable[Row]) -> list[str]:
    names = dict.fromkeys(row.site for row in rows if row.metric == "mean_cosine")
    return [name for name in names if not (name.endswith("norm") or is_embedding(name) or is_part(name))]
