"""One reader for each format of vectors."""
