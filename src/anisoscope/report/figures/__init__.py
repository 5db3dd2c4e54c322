"""Matplotlib figures, one function each, drawn from stored runs only."""
