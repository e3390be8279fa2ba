"""Runs experiments: trains and evaluates their arms, and writes one table and its pictures."""
