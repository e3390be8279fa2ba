"""The config files of pre-training."""

import pytest

from bert_jax.errors import UserError
from bert_jax.runs import pretrain
from bert_jax.settings import config_files, pretrain_config
from bert_jax.training.optimizers import make_optimizer


@pytest.mark.parametrize(
    "name, size",
    [
        *((size, size) for size in ("tiny", "mini", "small", "base", "large")),
        ("base_v5e", "base"),
        ("base_gpu", "base"),
        ("continue", "base"),
        ("multilingual", "base"),
        ("modernbert", "modernbert-base"),
        ("ettin_tiny", "ettin-17m"),
        ("mosaicbert", "mosaicbert-base"),
        ("neobert", "neobert"),
        ("crammed_bert", "crammed-bert"),
    ],
)
def test_the_config_files(name, size):
    """Each has the fields of a run, and stands for its size."""
    from bert_jax.models.sizes import SIZES

    config = config_files.load(f"pretrain/{name}")
    typed = pretrain_config.pretraining(config)
    make_optimizer(typed.optimizer, config.steps, None)
    assert typed.batch_sizes.values[-1] == config.batch_size
    # A run takes the size of the vocabulary from its records.
    expected = {**SIZES[size], **({"vocab_size": 0} if "vocab_size" in SIZES[size] else {})}
    if name == "modernbert":  # short rows come first, and dropout is of pre-training alone
        expected |= {"rotary_theta": 10_000.0, "hidden_dropout_prob": 0.1}
    assert {name: config.model[name] for name in SIZES[size]} == expected
    assert config.optimizer.warmup_steps < config.steps


def load_config(name, argument):
    return config_files.load(f"pretrain/{name}:{argument}")


@pytest.mark.parametrize(
    "phase, tokens, first, last, prob, thetas",
    [
        ("ettin-17m+8k", 250e9, 3e-3, 1.5e-3, 0.3, (160_000, 10_000)),
        ("ettin-17m+decay", 50e9, 1.5e-3, 0.04 * 1.5e-3, 0.15, (160_000, 160_000)),
        ("modernbert-large+decay", 50e9, 5e-5, 5e-8, 0.3, (160_000, 10_000)),
        ("ettin-1b+8k", 250e9 / 3, 5e-4, 2.5e-4, 0.3, (160_000, 10_000)),
    ],
)
def test_phases_of_long_rows(phase, tokens, first, last, prob, thetas):
    config = pretrain_config.pretraining(load_config("modernbert", phase))
    assert config.batch_size * 8192 * config.steps == pytest.approx(tokens, rel=0.01)
    schedule = make_optimizer(config.optimizer, config.steps, None)[1]
    assert [float(schedule(step)) for step in (1, config.steps)] == pytest.approx([first, last], rel=0.02)
    assert config.masking.prob == prob and config.model.max_position_embeddings >= 8192
    assert (config.model.rotary_theta, config.model.local_rotary_theta) == thetas
    with pytest.raises(UserError, match=r"alone or with \+8k or \+decay"):
        load_config("modernbert", "ettin-17m+9k")


@pytest.mark.parametrize("size", ["base", "large"])
def test_two_phases_have_the_schedule_of_one_run(size):
    whole, first, second = (load_config(size, phase) for phase in ("", "phase1", "phase2"))
    assert (first.requires, second.requires) == ("", "resume_from")
    second.requires = ""
    assert (first.steps, second.steps) == (900_000, 1_000_000) and second == whole
    one, two, three = (
        make_optimizer(pretrain_config.pretraining(c).optimizer, c.steps, None)[1]
        for c in (whole, first, second)
    )
    for step in (0, 5_000, 10_000, 899_999):
        assert one(step) == two(step) == three(step)
    assert two(899_999) > 0.09 * 1e-4
    with pytest.raises(UserError, match="expected phase1, of 128 tokens"):
        load_config(size, "phase3")


def test_the_hour_for_rows_and_for_pairs():
    rows, pairs = (load_config("hour", forms) for forms in ("", "pairs"))
    same = {"model_type", "type_vocab_size", "classifier_pooling"}
    assert {name for name in rows.model if rows.model[name] != pairs.model[name]} == same
    config, _ = pretrain.adopt_architecture(pretrain_config.pretraining(rows), ())
    assert config.model.classifier_pooling == "mean"
    with pytest.raises(UserError, match="expected some of pairs, left_to_right, two_layers"):
        load_config("hour", "packed")
