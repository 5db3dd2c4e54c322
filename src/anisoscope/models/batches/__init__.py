"""From documents, clips and pictures to batches."""
