"""anisoscope: an instrument for the geometry of neural representations."""

__version__ = "0.1.0"
