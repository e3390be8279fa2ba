"""Data of the demo: the task, sentences with masks, and the scores of baselines."""

from __future__ import annotations

import dataclasses
import random
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from etils import epy

from bert_jax.io import files
from bert_jax.tasks import writers
from bert_jax.tasks.readers.tables import Columns, read_examples
from bert_jax.workdir import run_directory

with epy.lazy_imports():
    import jax

    from bert_jax.data import loader, records, token_counts
    from bert_jax.models import config as model_config
    from bert_jax.objectives import masked_lm, masking
    from bert_jax.settings import masking_config

COLUMNS = Columns("sentence", label="package")
_WORDS = range(5, 41)  # number of words of a sentence of the task
_SHORT = range(6, 15)  # number of words of a sentence with a mask


def make_task(documents: Sequence, train_examples: int, seed: int = 0) -> tuple[list, list]:
    """Returns shuffled (train, dev) rows (sentence, package).

    Args:
        documents: documents of `data_pipelines.python_docs`.
        train_examples: number of rows for training; the others are dev rows.
        seed: seed of the shuffle.
    """
    rows = [
        (sentence, document.package)
        for document in documents
        for sentence in document.sentences
        if len(sentence.split()) in _WORDS
    ]
    random.Random(seed).shuffle(rows)
    return rows[:train_examples], rows[train_examples:]


def write_task(path: Path, rows: Sequence[tuple[str, str]]) -> None:
    """Writes rows (sentence, package) to a TSV file with a header, atomically."""
    files.make_directory(path.parent)
    writers.write_table(str(path), ("sentence", "package"), rows)


def read_task(path: Path) -> list[tuple[str, str]]:
    """Returns the rows (sentence, package) that `write_task` wrote."""
    examples = read_examples(str(path), COLUMNS)
    return list(zip(examples.texts_a, examples.labels or (), strict=True))


def choose_masks(sentences: Sequence[str], words: Sequence[str]) -> list[tuple[str, str]]:
    """Returns (sentence, word) pairs: the first short sentence with each of `words`, and [MASK] in its place.

    Words without such a sentence are left out, and no sentence is used twice.
    """
    chosen, used = [], set()
    for word in words:
        pattern = re.compile(rf"\b{word}\b")
        for sentence in sentences:
            # The first word is never masked, because its capital letter would give it away.
            inner = pattern.search(sentence, 1)
            if len(sentence.split()) in _SHORT and sentence not in used and inner:
                chosen.append((sentence[: inner.start()] + "[MASK]" + sentence[inner.end() :], word))
                used.add(sentence)
                break
    return chosen


def majority_share(labels: Sequence[str]) -> float:
    """Returns the accuracy of always predicting the most frequent label."""
    return max(Counter(labels).values()) / len(labels)


@dataclasses.dataclass(frozen=True)
class Baselines:
    """Scores of baselines on the held-out rows that pre-training was evaluated on.

    Attributes:
        masked: number of masked tokens in these rows.
        unigram_entropy: entropy of the distribution of the masked tokens, in nats per token; the lowest loss
            of a prediction that does not use the context.
        nsp_majority: fraction of the more frequent next-sentence label.
    """

    masked: int
    unigram_entropy: float
    nsp_majority: float


def pretraining_baselines(directory: str) -> Baselines:
    """Returns the baselines for a pre-training work directory, on the tokens that its evaluation masks."""
    config = run_directory.load_config(directory)
    tokenizer = run_directory.load_tokenizer(directory)
    model = model_config.from_dict(config.model.to_dict())
    held_out = records.open_dataset(config.data.dir, config.data.eval_split)
    prepare = jax.jit(
        masked_lm.MaskedLM(
            model,
            masking.Vocabulary.of(tokenizer),
            dataclasses.replace(masking_config.MaskingConfig(), **config.masking).options(
                held_out.max_seq_length, config.steps
            ),
            token_types=tokenizer.layout.types,
        ).prepare,
        static_argnums=2,
    )
    labels, nsp = [], []
    batches = loader.eval_batches(held_out, config.batch_size, max_batches=config.eval.batches)
    for index, batch in enumerate(batches):
        # The evaluation draws the same masks, see `bert_jax.training.step.make_eval_step`.
        key = jax.random.fold_in(jax.random.key(config.seed, impl="threefry2x32"), index)
        masked = jax.device_get(prepare(batch, key, False))
        labels.append(masked["masked_labels"][masked["masked_weights"] > 0])
        nsp.append(batch["next_sentence_labels"][batch["next_sentence_labels"] >= 0])
    labels, nsp = np.concatenate(labels), np.concatenate(nsp)
    counts = np.bincount(labels, minlength=tokenizer.vocab_size)
    return Baselines(
        masked=len(labels),
        unigram_entropy=token_counts.cross_entropy(counts, counts, smoothing=0),
        nsp_majority=majority_share(nsp.tolist()),
    )
