"""Random models with each head, and their folders."""

import numpy as np
import pytest
from support.pretrained import vocabulary  # noqa: F401

from bert_jax import tokenization
from bert_jax.convert import Model
from bert_jax.convert.families import bert
from bert_jax.convert.formats import huggingface_export
from bert_jax.models import assembled
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
        generator = np.random.default_rng(3)
        params = {
            name: generator.normal(1.0 if name.endswith("scale") else 0.0, 0.3, shape).astype(np.float32)
            for name, shape in assembled.shapes(config, tuple(groups), classes).items()
        }
        labels = tuple("abcdefgh"[:classes]) if "classifier" in groups and classes > 1 else None
        return Model(config, params, head, tokenizer, labels, "the source")

    return make


@pytest.fixture
def export(tmp_path, make_model):
    """export(head, ...): a Hugging Face folder of such a model, and the model."""

    def write(*args, **fields):
        folder = tmp_path / "huggingface"
        folder.mkdir()
        model = make_model(*args, **fields)
        huggingface_export.write(model, folder)
        return folder, model

    return write
