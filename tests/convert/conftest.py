"""Random models with each head, and their folders."""

import pytest
from support.conversions import random_model
from support.pretrained import vocabulary  # noqa: F401

from bert_jax import tokenization
from bert_jax.convert.families import bert
from bert_jax.convert.formats import huggingface
from bert_jax.models.config import EncoderConfig

WORDS = "the capital of france is paris and a small cat sat on un ##aff ##able ##s , .".split()
SPECIAL = ["[PAD]", "[unused0]", "[unused1]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


@pytest.fixture(scope="session")
def tokenizer(tmp_path_factory):
    path = tmp_path_factory.mktemp("vocabulary") / "vocab.txt"
    path.write_text("\n".join([*SPECIAL, *WORDS]) + "\n")
    return tokenization.load(path)


@pytest.fixture(scope="session")
def make_model(tokenizer):
    """make_model(head, pooler, classes, **fields): weights so large that every one shows in the outputs."""

    def make(head="pretraining", pooler=True, classes=3, **fields):
        config = EncoderConfig(
            **dict(
                vocab_size=tokenizer.vocab_size,
                hidden_size=12,
                num_hidden_layers=2,
                num_attention_heads=3,
                intermediate_size=20,
                max_position_embeddings=16,
            )
            | fields
        )
        groups = [x.strip("()") for x in bert.FAMILY.heads[head] if pooler or x != "(pooler)"]
        classes = 1 if head == "multiple_choice" else classes
        labels = tuple("abcdefgh"[:classes]) if "classifier" in groups and classes > 1 else None
        named = {"tokenizer": tokenizer, "labels": labels, "source": "the source"}
        return random_model(config, head, groups, classes, **named)

    return make


@pytest.fixture
def export(tmp_path, make_model):
    """export(head, ...): a Hugging Face folder of such a model, and the model."""

    def write(*args, **fields):
        folder = tmp_path / "huggingface"
        folder.mkdir()
        model = make_model(*args, **fields)
        huggingface.FORMAT.write(model, folder)
        return folder, model

    return write
