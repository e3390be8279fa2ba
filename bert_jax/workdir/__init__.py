"""The work directory of a run, and its lock."""
