"""The lines that `bert-jax data` prints about its records."""

from bert_jax.commands import data


def test_a_small_split_has_a_size_that_is_not_zero():
    split = {"rows": 4, "fill": 0.9, "sequences": 4, "documents": 2, "tokens": 230}
    manifest = {
        "max_seq_length": 64,
        "nsp": "none",
        "input_format": "text",
        "splits": {
            "train": split | {"files": [{"bytes": 900_000}, {"bytes": 140_000}]},
            "eval": split | {"files": [{"bytes": 812}]},
        },
        "text": {"documents": 4, "sentences": 9, "tokens": 430, "unknown_tokens": 0},
    }
    train, held_out, _ = data.summary(manifest)
    assert train.endswith("230 tokens, 2 files, 1.0 MB")
    assert held_out.endswith("230 tokens, 1 file, 812 bytes")
