"""Reads and writes files by path. Only this package distinguishes local paths from URLs."""
