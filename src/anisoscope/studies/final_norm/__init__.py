"""Final norm."""
