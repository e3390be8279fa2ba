"""GLUE: its tables, its scores and its submissions."""
