"""Weights that were published in other forms, turned into folders that transformers opens."""
