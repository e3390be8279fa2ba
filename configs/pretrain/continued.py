"""Continued pre-training of a checkpoint on text of your domain: 10,000 steps of 32 rows.

    bert-jax pretrain --config=pretrain/continued --workdir=runs/domain --config.data.dir=records \
        --config.init_from=runs/base

init_from is a work directory, a Hugging Face folder or a TF1 checkpoint; the architecture is taken from it.
The records have to be made with its vocabulary. A checkpoint without the heads of pre-training, such as an
encoder of sentences, needs --config.init_ignore='mlm/.*|nsp/.*', and more steps for the new heads. The
learning rate is half of that of pre-training: a higher one forgets more of what the checkpoint knows.
"""

from bert_jax.settings import defaults


def get_config():
    c = defaults.pretrain("base")  # for the dropout; the sizes are those of init_from
    c.batch_size = 32
    c.steps = 10_000
    c.optimizer.learning_rate = 5e-5
    c.optimizer.warmup_steps = 500
    c.checkpoint.every = 500
    c.eval.every = 500
    c.log_every = 50
    return c
