"""Experiments made of runs."""
