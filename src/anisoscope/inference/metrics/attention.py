"""The metrics of queries, keys and rows of attention. Their nulls, unrelated isotropic queries and keys or uniform
attention, depend on the head and on the visible keys: the study computes them (`studies.attention.rows`)."""

from __future__ import annotations

from functools import partial

from anisoscope.inference.metrics.declaration import Metric

_metric = partial(Metric, group="attention")
_size = partial(_metric, low=0.0)
_share = partial(Metric, group="attention", low=0.0, high=1.0)
_cosine = partial(Metric, group="attention", low=-1.0, high=1.0)
_sides = (("query", "queries"), ("key", "keys"))

ATTENTION = (
    _cosine("query_key_cosine", "cos(Q̄, K̄)", "Cosine of the mean query and the mean key of a head."),
    _share(
        "query_key_alignment", "|cos(Q̄, K̄)|", "Absolute cosine of the mean query and the mean key, averaged over heads."
    ),
    _metric("query_key_dot", "⟨Q̄, K̄⟩", "Dot product of the mean query and the mean key of a head."),
    *(
        _share(f"{one}_drift_ratio", f"drift ratio of {many}", f"Share of the energy of the {many} that is their mean.")
        for one, many in _sides
    ),
    *(
        _cosine(f"{one}_mean_cosine", f"average cosine of {many}", f"Average cosine over all pairs of {many}.")
        for one, many in _sides
    ),
    _metric("entropy", "entropy of rows", "Entropy of a row of attention.", low=0.0, unit="nats"),
    _share(
        "entropy_normalised",
        "entropy over log m",
        "Entropy of a row over that of uniform attention: 1 is uniform over the m visible keys, 0 a single key.",
    ),
    _share("max_probability", "largest probability", "Largest probability of a row of attention."),
    _share("median_probability", "median probability", "Median probability of a row of attention."),
    _share("min_probability", "smallest probability", "Smallest probability of a row of attention."),
    *(
        _share(
            f"sequence_{end}{more}",
            f"{word} probability of a sequence",
            f"The {word} probability over all rows of a sequence.",
        )
        for end, word in (("max", "largest"), ("min", "smallest"))
        for more in ("", "_probability")
    ),
    _share("sink_share", "share of the first key", "Probability that a row gives to the first position."),
    _share("self_share", "share of the own position", "Probability that a row gives to its own position."),
    _share(
        "sink_alpha", "sink strength α", "Average probability of the first key over all rows of a sequence (Gu et al.)."
    ),
    _share(
        "sink_epsilon", "sinks above 0.3", "How often the average probability of the first key exceeds 0.3 (Gu et al.)."
    ),
    _share(
        "entropy_collapse",
        "collapsed rows",
        "Share of rows whose entropy is below a tenth of that of uniform attention.",
    ),
    _share("one_key_share", "rows on one key", "Share of rows that give one key a probability above 0.99."),
    _cosine(
        "output_value_cosine",
        "output with own value",
        "Cosine of what a head puts out with the value of the query's own position.",
    ),
    *(
        _size(f"{one}_norm", f"norm of {many}", f"Average norm of the {many} of a head.")
        for one, many in (*_sides, ("value", "values"))
    ),
    _metric(
        "max_logit",
        "greatest logit",
        "Greatest score q·k·scale of a head over all visible pairs; it grows with their number.",
    ),
    *(
        _metric(f"max_logit_{part}", f"greatest logit, {formula}", f"Part {formula} of the greatest logit: {what}.")
        for part, formula, what in (
            ("means", "Q̄·K̄", "of the mean query and the mean key, which softmax does not see"),
            ("query", "δq·K̄", "of the query's deviation and the mean key, which softmax does not see"),
            ("salience", "Q̄·δk", "of the mean query and the key's deviation"),
            ("content", "δq·δk", "of both deviations"),
        )
    ),
    _metric("score_mean", "mean score", "Average content score q·k·scale, each row weighing the same."),
    _size("score_sd", "sd of scores", "Standard deviation of the content scores."),
    _size(
        "score_variance",
        "score variance",
        "Variance of the content scores within a row, which is all that softmax sees.",
    ),
    _size(
        "salience_variance", "salience variance", "Score variance that the mean query makes, the same for every query."
    ),
    _size(
        "content_variance", "content variance", "Score variance that the deviation of each query from the mean makes."
    ),
    _metric("cross_variance", "cross variance", "Twice the covariance of salience and content scores."),
    _share(
        "salience_share",
        "salience share",
        "Salience variance over salience plus content variance: what the drift of the queries does alone.",
    ),
    _share(
        "mean_key_removal",
        "effect of the mean key",
        "Largest change of a probability when the mean key is taken away; 0 by the algebra of softmax.",
    ),
    _share(
        "mean_query_removal",
        "effect of the mean query",
        "Largest change of a probability when the mean query is taken away.",
    ),
    _size(
        "key_code_error",
        "error of coded keys",
        "Error of the scores within a row when keys are stored in the given bits, over the spread of the scores.",
    ),
    _size(
        "key_code_error_centred",
        "error of coded keys, mean subtracted",
        "The same when the mean key is subtracted before keys are stored.",
    ),
    _metric("mean_score", "mean score", "Average score of an untrained attention layer."),
    _size("score_std", "sd of scores", "Standard deviation of all scores of an untrained attention layer."),
    _size(
        "score_row_std",
        "sd within a row",
        "Standard deviation of the scores within a row of an untrained attention layer.",
    ),
)
