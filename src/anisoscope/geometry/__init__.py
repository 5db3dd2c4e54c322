"""Pure functions of sums or of an array, one idea per file."""
