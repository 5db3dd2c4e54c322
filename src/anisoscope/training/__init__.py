"""Watching and changing training."""
