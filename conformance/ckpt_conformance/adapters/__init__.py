"""Adapters: of the two backends, and a minimal one to learn from."""
