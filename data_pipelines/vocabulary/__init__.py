"""Trains vocabularies: WordPiece as `vocab.txt`, SentencePiece as `.model`, byte-level BPE as `.json`."""

from data_pipelines.vocabulary.learners import Options
from data_pipelines.vocabulary.training import TRAINERS, WORD_OPTIONS, find_words, train

__all__ = ["TRAINERS", "WORD_OPTIONS", "Options", "find_words", "train"]
