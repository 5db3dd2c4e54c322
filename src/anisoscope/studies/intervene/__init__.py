"""Intervene."""
