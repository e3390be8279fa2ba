"""Cleans documents for `bert-jax data --clean=unicode,length,...`, and reports what it did."""

from data_pipelines.cleaning.steps import (
    FLAG_STEPS,
    REPORT,
    Cleaner,
    Settings,
    folded_text,
    lines,
    parse,
    without_examples,
)

__all__ = [
    "FLAG_STEPS",
    "REPORT",
    "Cleaner",
    "Settings",
    "folded_text",
    "lines",
    "parse",
    "without_examples",
]
