"""Intervals, tests and verdicts."""
