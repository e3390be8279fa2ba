"""Runs experiments: trains their arms, judges them, and writes one table and one picture."""
