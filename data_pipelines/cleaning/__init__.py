"""Cleans documents for `bert-jax data --clean=unicode,length,...`, and reports what it did."""

from data_pipelines.cleaning.report import REPORT, lines, without_examples
from data_pipelines.cleaning.settings import FLAG_STEPS, STEPS, Settings, parse
from data_pipelines.cleaning.steps import Cleaner, folded_text

__all__ = [
    "FLAG_STEPS",
    "REPORT",
    "STEPS",
    "Cleaner",
    "Settings",
    "folded_text",
    "lines",
    "parse",
    "without_examples",
]
