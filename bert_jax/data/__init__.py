"""Reads and writes records, and loads host batches from them. No module here imports jax."""
