"""What is kept of attention: queries, keys and rows of every head."""
