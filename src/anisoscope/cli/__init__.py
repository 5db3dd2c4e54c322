"""One small file per command; heavy imports stay inside the commands."""
