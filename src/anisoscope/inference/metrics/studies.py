"""The metrics that single studies report beside those of clouds and attention. Their nulls are the studies' own."""

from __future__ import annotations

from functools import partial

from anisoscope.inference.metrics.declaration import Metric

_block = partial(Metric, group="block", low=0.0)
_BLOCK = (
    _block("norm_of_mean", "norm of the mean", "Norm of the mean vector at a site of the block."),
    _block(
        "expected_norm_of_mean",
        "expected norm of the mean",
        "Norm that the mean query or key has by equation 1: the projection of the mean input.",
    ),
    _block(
        "equation_1_distance",
        "distance from equation 1",
        "Distance of the measured mean from the expected one, in units of its sampling error.",
        unit="standard errors",
    ),
    _block(
        "fixed_point", "fixed point N*", "Drift norm at which inputs and outputs of the block have the same mean norm."
    ),
    _block(
        "fixed_point_of_mean",
        "fixed point of the mean",
        "Drift norm at which the means of inputs and outputs have the same norm.",
    ),
    _block(
        "fixed_point_of_layernorm",
        "fixed point of a LayerNorm",
        "Drift norm at which the inputs are as long as the output of a fresh LayerNorm, √d.",
    ),
    _block(
        "norm_over_fixed_point",
        "norm over N*",
        "Mean norm of a trained block's output over the fixed point of the untrained one.",
    ),
    _block("width", "width", "Number of entries of the vectors that the block reads.", unit="dimensions"),
)

_vocabulary = partial(Metric, group="vocabulary")
_VOCABULARY = (
    _vocabulary(
        "partition_one_sided",
        "I(W), one-sided",
        "Smallest over largest value of the partition function, one "
        "sign for each eigenvector, as the published codes compute it.",
        low=0.0,
        high=1.0,
    ),
    _vocabulary(
        "partition_one_sided_float32",
        "I(W), float32",
        "The one-sided I(W) in single precision, as published.",
        low=0.0,
        high=1.0,
    ),
    _vocabulary(
        "partition_both",
        "I(W), both signs",
        "Smallest over largest value of the partition function, over both signs of each eigenvector.",
        low=0.0,
        high=1.0,
    ),
    _vocabulary(
        "spearman_log_frequency_norm",
        "frequency and norm",
        "Rank correlation of a token's log frequency with the norm of its vector.",
        low=-1.0,
        high=1.0,
    ),
    _vocabulary(
        "spearman_log_frequency_first_component",
        "frequency and first component",
        "Rank correlation of a token's log frequency with its first principal component.",
        low=-1.0,
        high=1.0,
    ),
)

_norm = partial(Metric, group="final norm", low=0.0)
_FINAL_NORM = (
    _norm("gain_norm", "‖gain‖", "Norm of the gain of a LayerNorm or RMSNorm."),
    _norm("bias_norm", "‖bias‖", "Norm of the bias of a LayerNorm."),
    _norm("bias_over_gain", "‖bias‖/‖gain‖", "Norm of the bias over that of the gain."),
    _norm(
        "implied_cosine",
        "implied cosine",
        "Average cosine that gain and bias alone would give to isotropic vectors.",
        high=1.0,
    ),
    Metric(
        "cosine_above_implied",
        "cosine beyond the norm",
        "Average cosine after the norm minus the one that its gain and bias imply.",
        "final norm",
        -2.0,
        1.0,
    ),
)

_intervene = partial(Metric, group="intervention")
_INTERVENE = (
    _intervene("loss", "loss", "Average loss of the tokens that are asked for.", low=0.0, unit="nats"),
    _intervene(
        "kl",
        "KL divergence",
        "Divergence of the output distribution from that of the untouched model.",
        low=0.0,
        unit="nats",
    ),
    _intervene(
        "last_cosine", "cosine of the last block", "Average cosine of what the last block puts out.", low=-1.0, high=1.0
    ),
)

_output = partial(Metric, group="output", low=0.0)
_OUTPUT = (
    Metric("logsumexp", "logsumexp", "Logarithm of the sum of exp(logit) over the vocabulary.", "output", unit="nats"),
    _output("logsumexp_square", "logsumexp squared", "Square of the logsumexp, which a z-loss holds down."),
    _output("logit_norm", "logit norm", "Norm of the logits of a position."),
    _output("prediction_entropy", "entropy of the prediction", "Entropy of the predicted distribution.", unit="nats"),
    _output(
        "head_gradient_share",
        "gradient through the head",
        "Norm of the part of the loss's gradient by the logits that the head passes back, over the whole norm.",
        high=1.0,
    ),
    _output(
        "gradient_top_energy",
        "gradient in top directions",
        "Share of the energy of the gradient by the last state in the top tenth of the directions of these states.",
        high=1.0,
    ),
)

_calibrate = partial(Metric, group="similarity")
_calibrate_cosine = partial(_calibrate, low=-1.0, high=1.0)
_calibrate_share = partial(_calibrate, low=0.0, high=1.0)
_CALIBRATE = (
    _calibrate_cosine("floor_mean", "mean of the floor", "Average cosine of unrelated pairs."),
    _calibrate_share("floor_sd", "sd of the floor", "Standard deviation of the cosine of unrelated pairs."),
    _calibrate_cosine("threshold", "threshold", "Cosine that unrelated pairs exceed at the given false-positive rate."),
    _calibrate_cosine("nearest_mean", "best match", "Average cosine of a row and its best match."),
    _calibrate(
        "nearest_gap",
        "gap of the best match",
        "Distance of the best match from the mean of the floor, in standard deviations of the floor.",
        unit="sd",
    ),
    _calibrate_cosine(
        "threshold_conformal",
        "conformal threshold",
        "Cosine that an unrelated document of a new query exceeds with at most the given probability.",
    ),
    _calibrate_share(
        "floor_percentile",
        "percentile of the floor",
        "Share of unrelated pairs whose cosine stays below the given one.",
    ),
    *(
        _calibrate_share(name, label, meaning)
        for name, label, meaning in (
            ("ndcg", "nDCG@10", "Quality of the first ten documents found, beside the best possible order."),
            ("recall", "recall@k", "Share of a query's related documents among the first k."),
            ("recall_at_threshold", "recall at the threshold", "Share of related pairs above the threshold."),
            (
                "precision_at_threshold",
                "precision at the threshold",
                "Share of labelled pairs above the threshold that are related.",
            ),
        )
    ),
    _calibrate_share(
        "neighbour_overlap",
        "neighbours kept",
        "Share of a row's ten nearest neighbours that are still among its ten nearest after a change, "
        "or in the other of two clouds.",
    ),
)

_ADVISE = (
    _calibrate_share(
        "overlap_forecast",
        "neighbours kept, forecast",
        "Neighbours that would be kept if the cloud were Gaussian with the same mean and covariance.",
    ),
    _calibrate("memory_per_million", "memory", "Memory of a million vectors.", low=0.0, unit="GB"),
    _calibrate("bytes_saved", "bytes saved", "How many times fewer bytes a vector takes than in float32.", low=0.0),
    _calibrate("forecast_bias", "bias of the forecast", "Average of forecast minus measured overlap."),
    _calibrate(
        "forecast_error", "error of the forecast", "Average distance of forecast and measured overlap.", low=0.0
    ),
    _calibrate("forecast_worst", "worst forecast", "Largest distance of forecast and measured overlap.", low=0.0),
    _calibrate_cosine(
        "forecast_rank", "rank of the forecast", "Rank correlation of forecast and measured overlap over all variants."
    ),
)

_two_clouds = partial(Metric, group="two clouds")
_two_clouds_cosine = partial(_two_clouds, low=-1.0, high=1.0)
_two_clouds_share = partial(_two_clouds, low=0.0, high=1.0)
_TWO_CLOUDS = (
    _two_clouds("gap", "gap of the means", "Distance of the means of two clouds.", low=0.0),
    _two_clouds("gap_unit", "gap on the sphere", "Distance of the mean unit vectors of two clouds.", low=0.0, high=2.0),
    _two_clouds_cosine(
        "cosine_between",
        "cosine between",
        "Average cosine of a vector of one cloud and one of the other that is not its partner.",
    ),
    _two_clouds_share(
        "axes_overlap", "overlap of the top axes", "Share of the k top principal axes that two clouds have in common."
    ),
    _two_clouds_cosine("partner_cosine", "cosine of partners", "Average cosine of a row and its partner."),
    _two_clouds_share(
        "linear_cka",
        "linear CKA",
        "Likeness of two clouds whose rows are partners, up to rotation and scale: 1 for the same shape.",
    ),
    _two_clouds(
        "procrustes_distance",
        "Procrustes distance",
        "What is left between two clouds of partners after the best rotation, both scaled to unit size.",
        low=0.0,
        high=2.0,
    ),
)

_hubs = partial(Metric, group="neighbourhood")
_HUBS = (
    _hubs("hubness_cosine", "hubness by cosine", "Skewness of how often a vector is among the ten nearest of others."),
    _hubs("hubness_csls", "hubness after CSLS", "The same after cross-domain similarity local scaling."),
    _hubs("hubness_mutual_proximity", "hubness after mutual proximity", "The same after mutual proximity."),
    _hubs("anti_hub_share", "anti-hubs", "Share of vectors that are nobody's neighbour.", low=0.0, high=1.0),
    _hubs("hub_occurrence", "occurrence of a hub", "How often the vector is among the ten nearest of others.", low=0.0),
    _hubs("query_hubness", "hubness of documents", "Skewness of how often queries find a document in their first ten."),
    _hubs("query_anti_hub_share", "documents not found", "Share of documents that no query finds.", low=0.0, high=1.0),
    _hubs("query_hub_occurrence", "queries of a hub", "Queries that find the document in their first ten.", low=0.0),
)

_training = partial(Metric, group="training", low=0.0)
_TRAINING = (
    _training(
        "training_loss", "training loss", "Average loss of the training batches since the last record.", unit="nats"
    ),
    _training("validation_loss", "validation loss", "Average loss on held-out data.", unit="nats"),
    _training(
        "validation_accuracy",
        "validation accuracy",
        "Share of held-out examples that are classified correctly.",
        high=1.0,
    ),
    _training("diverged_at", "diverged at step", "Step at which the loss was no finite number any more."),
    _training("learning_rate", "learning rate", "Step size of the optimiser."),
    _training("gradient_norm", "gradient norm", "Norm of the gradient before clipping."),
)

_DRIFT_TESTS = tuple(
    Metric(
        f"{method}_{against}{end}",
        f"{method.capitalize()}, {word}{name}",
        f"{what} {method.capitalize()} correlation of the average cosine with the {word} over the layers of a model.",
        "drift test",
        low,
        1.0,
    )
    for against, word in (("drift_norm", "drift norm"), ("drift_ratio", "drift ratio"))
    for method in ("spearman", "pearson")
    for end, name, what, low in (
        ("", "", "The", -1.0),
        ("_p", ", p", "Permutation p-value of the", 0.0),
        ("_p_asymptotic", ", asymptotic p", "Asymptotic p-value, as in the paper, of the", 0.0),
    )
)

STUDIES = (
    *_BLOCK,
    *_VOCABULARY,
    *_FINAL_NORM,
    *_INTERVENE,
    *_OUTPUT,
    *_CALIBRATE,
    *_ADVISE,
    *_TWO_CLOUDS,
    *_HUBS,
    *_TRAINING,
    *_DRIFT_TESTS,
)
