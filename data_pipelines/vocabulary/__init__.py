"""Trains vocabularies on text: WordPiece as `vocab.txt`, SentencePiece as `.model`."""

from data_pipelines.vocabulary.options import Options
from data_pipelines.vocabulary.training import TRAINERS, train

__all__ = ["TRAINERS", "Options", "train"]
