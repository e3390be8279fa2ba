"""Trains vocabularies: WordPiece as `vocab.txt`, SentencePiece as `.model`, byte-level BPE as `.json`.

`words` finds the words that a trained one lacks.
"""

from data_pipelines.vocabulary import words
from data_pipelines.vocabulary.options import Options
from data_pipelines.vocabulary.training import TRAINERS, train

__all__ = ["TRAINERS", "Options", "train", "words"]
