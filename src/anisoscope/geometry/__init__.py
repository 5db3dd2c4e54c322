"""Pure functions of sums or of an array, one idea per file; numpy in, numbers or arrays out, no torch.

- of sums, over all pairs at once: `cosine`, `drift`, `queries_keys`, `two_clouds`; of the eigenvalues of the
  covariance: `spectrum`;
- of an array of vectors: `partition` (a vocabulary matrix), `uniformity`, `neighbours`, `hubs`, `pairs` (a sample);
  of single dimensions: `outliers`;
- what changes vectors: `corrections` (affine maps), `codes` (fewer bits);
- what isotropy would look like: `nulls.isotropic`, `nulls.wishart` (the spectrum of pure noise), `nulls.extremes`;
  tests of it: `directional`;
- used by all: `missing` (how an undefined number leaves a formula), `rows` (rows in blocks, unit rows), `scale`.
"""
