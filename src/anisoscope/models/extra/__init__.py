"""Architectures that transformers does not have: CharacterBERT, MANTa, VAN, TinyViT."""
