"""Throughput, FLOPs, profiles and the files of a run's metrics."""
