"""What isotropy would give."""
