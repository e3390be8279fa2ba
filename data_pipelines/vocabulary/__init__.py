"""Trains vocabularies: WordPiece as `vocab.txt`, SentencePiece as `.model`, byte-level BPE as `.json`."""

from data_pipelines.vocabulary.options import Options
from data_pipelines.vocabulary.training import TRAINERS, train

__all__ = ["TRAINERS", "Options", "train"]
