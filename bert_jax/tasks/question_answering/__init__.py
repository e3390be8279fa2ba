"""Answers as spans of a context, such as SQuAD."""
