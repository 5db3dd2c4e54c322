"""Open a model of any modality and feed it."""
