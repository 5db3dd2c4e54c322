"""Block."""
