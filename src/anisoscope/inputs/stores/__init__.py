"""Objects of a store (S3, Google Cloud, Azure, the Hugging Face Hub) read like files."""
