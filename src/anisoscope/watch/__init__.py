"""What watches a training: the monitor, its probe, callbacks."""
