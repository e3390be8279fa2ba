"""The directory of a run, and its lock."""
