"""Heads, described by value, and the models that have them."""
