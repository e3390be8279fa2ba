"""Plots of a run's metrics, of attention maps, and of the contents of records."""
