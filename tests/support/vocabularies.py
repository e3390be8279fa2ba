"""Vocabularies that tests learn, and folders of small models with the files of any tokenizer."""

import json

import numpy as np
import sentencepiece

from bert_jax.convert.formats import huggingface
from bert_jax.models.config import EncoderConfig

from .conversions import random_model

WORDS = "the cat sat on a small mat and one dog ran with it to capital town of france in rain".split()


def fairseq_model(folder, size=60):
    """Writes a SentencePiece model with the ids of XLM-R into a folder, and returns its path."""
    rng, path = np.random.default_rng(0), folder / "sentencepiece.bpe.model"
    with path.open("wb") as file:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=(" ".join(rng.choice(WORDS, 9)) for _ in range(300)), model_writer=file,
            vocab_size=size, hard_vocab_limit=False, minloglevel=2, unk_id=0, bos_id=1, eos_id=2, pad_id=-1,
        )  # fmt: skip
    return path


def write_folder(folder, family, vocab_size, files):
    """Writes a small encoder as a Hugging Face folder.

    Args:
        folder: an existing folder.
        family: "bert" or "roberta".
        vocab_size: the number of embeddings.
        files: {name: content} of the files of the tokenizer; the content is a text, or an object for JSON.
    """
    sizes = dict(hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8)
    types = {"roberta": {"type_vocab_size": 1, "position_offset": 2}}.get(family, {})
    fields = sizes | types | {"max_position_embeddings": 20, "model_type": family}
    config = EncoderConfig(vocab_size=vocab_size, **fields)
    huggingface.FORMAT.write(random_model(config, "none"), folder)
    for name, content in files.items():
        text = content if isinstance(content, str) else json.dumps(content)
        (folder / name).write_text(text, "utf-8")
