"""Text, speech, images and vectors; what is embedded."""
