"""Rows and tables of labeled examples, read from files."""
