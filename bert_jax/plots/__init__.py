"""Pictures: the curves of a run, attention maps, and what is in records."""
