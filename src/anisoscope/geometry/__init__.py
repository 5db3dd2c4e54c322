"""Pure functions of sums or of an array, one idea per file; numpy float64 in, numbers out, no torch.

- of sums, over all pairs at once: `cosine`, `drift`; of the spectrum of the covariance: `spectrum`;
- of an array of vectors: `partition` (a vocabulary matrix), `uniformity`, `neighbours`, `pairs` (a sample), `outliers`;
- what isotropy would look like: `null` and `wishart` (the spectrum of pure noise); tests of it: `directional`;
- shared ground: `missing` (how an undefined number leaves a formula), `rows` (rows in blocks, unit rows).
"""
