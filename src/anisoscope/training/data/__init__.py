"""What a training reads: text as bytes or byte pairs, and images."""
