"""Plots of the metrics of runs and of attention maps."""
