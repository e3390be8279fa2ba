"""The model that a fine-tuning takes from a checkpoint."""

import pytest
from support.fine_tuned import make_config
from support.pretrained import write

from bert_jax.tasks import fields, setup


@pytest.mark.parametrize("epsilon, kept", [(1e-12, ""), (1e-6, "layer_norm_eps 1e-06")])
def test_the_architecture_is_logged_with_what_is_set_beside_it(epsilon, kept, vocabulary, tmp_path):
    path = write(tmp_path / "pretrained", vocabulary, num_hidden_layers=1)
    config = make_config(vocabulary, "classification", text_a="text", label="color")
    config.vocab, config.init_from, config.model.layer_norm_eps = "", str(path), epsilon
    lines = []
    encoder, _ = setup.resolve_model(fields.of_run(config), (), lines.append)
    sizes, semicolon, more = lines[0].partition("; the config sets ")
    assert sizes.startswith(f"architecture of {path}: ") and len(lines) == 1
    assert f", hidden_size {encoder.hidden_size}, num_hidden_layers 1, " in sizes
    assert (more, bool(semicolon)) == (kept, bool(kept))
    assert encoder.layer_norm_eps == epsilon
