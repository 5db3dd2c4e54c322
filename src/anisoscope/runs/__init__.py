"""The tidy table, the run folder and the engine that fills it."""
