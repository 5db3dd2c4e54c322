"""Vectors in files: every format as blocks of rows."""
