"""Objectives for text vectors, with one vector per text or one per token."""
