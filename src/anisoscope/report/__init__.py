"""Figures and the page: they read the store only and never import torch."""
