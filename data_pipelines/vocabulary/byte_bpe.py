"""Trains byte-level BPE: the special tokens, the 256 bytes, and the merges learned from the text.

The trainer of `tokenizers` numbers the bytes in the order of their characters and breaks ties between pairs
by the numbers of their tokens, so that the result does not depend on the number of cores.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator

import tokenizers
from tokenizers import models, pre_tokenizers, trainers

from bert_jax.errors import UserError
from bert_jax.io.progress import Progress
from bert_jax.tokenization import byte_bpe_files, interface, normalization, templates
from data_pipelines import readers
from data_pipelines.vocabulary.options import Options

SAMPLE_BYTES = 200_000_000
_BATCH = 1000
_LONGEST_WORD = 1000  # characters; the time of the trainer grows with the square of the length of a word
# Longer words of GPT-2's pattern: letters, digits, other marks, or whitespace.
_LONG_WORD = re.compile(
    "|".join(f"{kind}{{{_LONGEST_WORD + 1},}}" for kind in (r"[^\W\d_]", r"\d", r"(?:[^\w\s]|_)", r"\s"))
)

# Special tokens and rows by the value of `Options.special_tokens`.
FAMILIES = {
    "roberta": (byte_bpe_files.ROBERTA_TOKENS, templates.ROBERTA),
    "bert": (byte_bpe_files.BERT_TOKENS, templates.BERT),
}


def learn(documents: Iterable[readers.Document], options: Options, progress: Progress) -> bytes:
    """Returns the content of a tokenizer.json that is learned from documents."""
    special_tokens, template = FAMILIES[options.special_tokens]
    alphabet = sorted(byte_bpe_files.characters_of_bytes().values())
    least = len(special_tokens) + len(alphabet)
    if options.size < least:
        raise UserError(
            f"--size={options.size} is too small: the special tokens and the bytes alone are {least}; give a "
            "greater --size"
        )
    rust = tokenizers.Tokenizer(models.BPE())
    rust.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=options.size,
        min_frequency=options.min_frequency,
        special_tokens=list(special_tokens.values()),
        initial_alphabet=alphabet,
        show_progress=False,
    )
    interface.parallelism()
    rust.train_from_iterator(_batches(documents, progress), trainer)
    model = json.loads(rust.to_str())["model"]
    merges = [" ".join(merge) for merge in model["merges"]]
    return byte_bpe_files.serialized(
        byte_bpe_files.tokenizer_json(model["vocab"], merges, special_tokens, template)
    )


def _batches(documents: Iterable[readers.Document], progress: Progress) -> Iterator[list[str]]:
    """Yields the passages. Except for the first of a document they begin with a space, as in records.

    Of a word of over _LONGEST_WORD characters, such as a DNA sequence, only the beginning is left.
    """
    batch: list[str] = []
    found = False
    for document in documents:
        for i, passage in enumerate(document.passages):
            found = found or not passage.isspace()
            passage = normalization.without_surrogates(passage)
            if len(passage) > _LONGEST_WORD:
                passage = _LONG_WORD.sub(lambda word: word[0][:_LONGEST_WORD], passage)
            batch.append(f" {passage}" if i else passage)
        if len(batch) >= _BATCH:
            yield batch
            batch = []
    if not found:
        raise UserError("the corpus has no words, only whitespace; expected text")
    yield batch
    progress.start("learning tokens")
