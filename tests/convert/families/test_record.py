"""A masked LM head without parameters, as of crammed BERT, which is the word embeddings alone."""

import numpy as np

from bert_jax import tokenization
from bert_jax.convert import Model, families
from bert_jax.convert.formats import work_directory
from bert_jax.models import assembled
from bert_jax.models.config import EncoderConfig

SMALL = dict(vocab_size=30, hidden_size=12, num_attention_heads=3, intermediate_size=20)


def random_params(family, config, groups, name, classes):
    generator = np.random.default_rng(0)
    shapes = assembled.parameters(family.module(config, groups, name, classes))
    return {key: generator.normal(size=one.shape).astype(np.float32) for key, one in shapes.items()}


def test_a_masked_lm_without_parameters_of_its_own_stays_one_in_a_work_directory(tmp_path):
    """crammed-BERT's head is the word embeddings."""
    config = EncoderConfig(**SMALL, num_hidden_layers=1, model_type="crammed-bert")
    family = families.of(config)
    params = random_params(family, config, ("encoder", "mlm"), "masked_lm", 2)
    assert not any(name.startswith("mlm") for name in params)
    words = tmp_path / "vocab.txt"
    words.write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a"]) + "\n")
    for name in ("masked_lm", "none"):
        model = Model(config, params, name, tokenization.load(words), source="it")
        work_directory.FORMAT.write(model, tmp_path / name)
        assert work_directory.FORMAT.read(tmp_path / name).head == name
