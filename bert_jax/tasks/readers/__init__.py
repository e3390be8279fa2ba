"""Readers of examples from files, prepared data sets and streams."""
