"""Google records as any writer may make them: Examples from lists of numbers, with no code of the encoder."""

import json

from bert_jax import cli
from bert_jax.data import tf_example, tfrecord

LENGTH, PREDICTIONS = 12, 3


def example(first=(9, 10), second=(11,), masks=((1, 7), (4, 8)), label=1, newer=False, **features):
    """The record of one row; `masks` are (position, label), keywords replace or (None) leave out features."""
    ids = [2, *first, 3, *second, 3]
    pad = LENGTH - len(ids)
    slots = PREDICTIONS - len(masks)
    values = {
        "input_ids": ids + [0] * pad,
        "input_mask": [1] * len(ids) + [0] * pad,
        "segment_ids": [0] * (len(first) + 2) + [1] * (len(second) + 1) + [0] * pad,
        "masked_lm_positions": [position for position, _ in masks] + [0] * slots,
        "masked_lm_ids": [token for _, token in masks] + [0] * slots,
        "masked_lm_weights": [1.0] * len(masks) + [0.0] * slots,
        "next_sentence_labels": [label],
    } | features
    names = {"input_ids": "input_word_ids", "segment_ids": "input_type_ids"} if newer else {}
    stored = {names.get(name, name): numbers for name, numbers in values.items() if numbers is not None}
    return tf_example.encode(stored)


def write(path, examples):
    """Writes a record file without an index, as others do."""
    path.parent.mkdir(exist_ok=True, parents=True)
    path.write_bytes(b"".join(map(tfrecord.frame, examples)))


def inspect(capsys, *arguments):
    """Returns the exit code and the report of `bert-jax inspect`."""
    code = cli.main(["inspect", "--json", *map(str, arguments)])
    return code, json.loads(capsys.readouterr().out)


def write_vocabulary(path, size=100):
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"w{number}" for number in range(size - 5))]
    path.write_text("\n".join(tokens) + "\n")
    return str(path)
