"""Every metric of the tidy table, declared once: the terminal, the page, the docs and all estimates read it here.

    lookup("mean_cosine").label              # 'average cosine'
    lookup("loss_change").meaning            # systematic names are families: *_change, *_difference, cosine_q97.5 …
    near("mean_cosin")                       # ['mean_cosine', …]

Nothing here needs torch, so that reports can be written without it.
"""

from __future__ import annotations

from anisoscope.inference.metrics.clouds import CLOUD
from anisoscope.inference.metrics.declaration import Metric
from anisoscope.inference.metrics.families import member
from anisoscope.inference.metrics.studies import STUDIES

__all__ = ["GROUPS", "METRICS", "Metric", "declared", "lookup", "near", "of_cloud"]

METRICS: dict[str, Metric] = {metric.name: metric for metric in (*CLOUD, *STUDIES)}
GROUPS = tuple(dict.fromkeys(metric.group for metric in METRICS.values()))


def declared(name: str) -> Metric | None:
    """The declaration of a metric by its name, or None."""
    return METRICS.get(name) or member(name, METRICS)


def lookup(name: str) -> Metric:
    """The declaration of a metric by its name; an error that suggests a name where there is none.

    >>> lookup("drift_ratio").label, lookup("entropy_normalised_change").label, lookup("cosine_q99").high
    ('drift ratio', 'entropy over log m, change', 1.0)
    """
    from anisoscope.errors import UsageError

    found = declared(name)
    if found is None:
        meant = ", ".join(near(name))
        raise UsageError("no metric has this name", got=repr(name), expected=meant and f"perhaps {meant}")
    return found


def near(name: str) -> list[str]:
    """Declared names that resemble a name, the nearest first.

    >>> near("mean_cosin")[0]
    'mean_cosine'
    """
    from difflib import get_close_matches

    return get_close_matches(name, METRICS, n=4, cutoff=0.6)


def of_cloud(*groups: str) -> list[Metric]:
    """The metrics of these groups that are functions of sums, in the order in which they are estimated."""
    return [metric for metric in METRICS.values() if metric.group in groups and metric.of is not None]
