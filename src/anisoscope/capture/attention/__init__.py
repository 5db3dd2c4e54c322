"""Queries, keys and attention rows, seen where the model computes them."""
