"""Objectives of the baselines that encoders are compared with."""
