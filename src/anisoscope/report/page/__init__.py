"""The interactive page: one HTML file."""
