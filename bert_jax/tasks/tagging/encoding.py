"""Encodes tagged sentences as rows of tokens, with the position of each word."""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np

from bert_jax.tasks.rows import batches, windows
from bert_jax.tasks.rows.assembly import RowBuilder
from bert_jax.tasks.tagging.word_files import TaggedSentences
from bert_jax.tokenization import Tokenizer


@dataclasses.dataclass(kw_only=True)
class TaggedRows(batches.EncodedRows):
    """The rows of sentences.

    Attributes:
        word_tokens: int64 [words of all sentences], the position in `tokens` of the first subword of each
            word, in the row with the most context for the word.
    """

    word_tokens: np.ndarray

    def compared(self, outputs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns the outputs of all tokens, and their targets."""
        return outputs, self.token_targets["tags"]


def encode(
    examples: TaggedSentences,
    tokenizer: Tokenizer,
    max_seq_length: int,
    labels: tuple[str, ...],
    document_context: bool = False,
) -> TaggedRows:
    """Encodes each sentence as a row, [CLS] words [SEP], or as several windows if it is too long.

    A word without subwords becomes [UNK], and one with more subwords than a row has room for is
    truncated.

    Args:
        examples: the sentences, with or without tags. Tags that are not in `labels` have no target.
        tokenizer: the tokenizer of the model.
        max_seq_length: the maximum number of tokens of a row, including special tokens.
        labels: the tags in the order of the logits.
        document_context: whether the row of a sentence is filled up with the words around it in its document.
    """
    budget = tokenizer.layout.room(max_seq_length, pair=False)
    vocabulary = dict.fromkeys(itertools.chain.from_iterable(examples.words))
    ids = {word: number for number, word in enumerate(vocabulary)}
    words = [tokenizer.after_space(word) for word in ids]
    subwords = [tokens or [tokenizer.unk_id] for tokens in tokenizer.encode_batch(words)]
    cut = np.array([len(tokens) > budget for tokens in subwords])
    subwords = [np.asarray(tokens[:budget], np.int32) for tokens in subwords]
    lengths = np.array([len(tokens) for tokens in subwords])
    names = {name: number for number, name in enumerate(labels)}

    builder, word_tokens, tags, truncated = RowBuilder(tokenizer), [], [], 0
    documents = examples.documents if document_context else range(len(examples))
    for _, sentences in itertools.groupby(range(len(examples)), documents.__getitem__):
        numbers = list(sentences)
        document = np.array([ids[word] for sentence in numbers for word in examples.words[sentence]])
        offsets = np.concatenate([[0], np.cumsum(lengths[document])])
        stop = 0
        for sentence in numbers:
            start, stop = stop, stop + len(examples.words[sentence])
            truncated += bool(cut[document[start:stop]].any())
            inside = offsets[start : stop + 1]
            spans = windows.split(inside, budget, max(budget // 2, 1))
            chosen = windows.most_context(inside, spans)
            spans = [(start + a, start + b) for a, b in spans]
            if len(spans) == 1:
                spans = [windows.widen(offsets, start, stop, budget)]
            positions = np.empty(stop - start, np.int64)
            for row, (a, b) in enumerate(spans):
                row_begin = builder.add(sentence, np.concatenate([subwords[word] for word in document[a:b]]))
                in_row = np.flatnonzero(chosen == row)
                text_begin = row_begin + tokenizer.layout.first_start
                positions[in_row] = text_begin + offsets[start + in_row] - offsets[a]
            word_tokens.append(positions)
            if examples.tags:
                tags.append([names.get(tag, batches.NO_TARGET) for tag in examples.tags[sentence]])
    word_tokens = np.concatenate(word_tokens)
    token_targets = {}
    if examples.tags:
        token_targets["tags"] = np.full(builder.total, batches.NO_TARGET, np.int32)
        token_targets["tags"][word_tokens] = np.concatenate(tags)
    return TaggedRows(
        **builder.arrays(max_seq_length),
        targets={},
        truncated=truncated,
        token_targets=token_targets,
        word_tokens=word_tokens,
    )
