"""Continued pre-training of a checkpoint on text of your domain: 10,000 steps of 32 rows.

    bert-jax pretrain --config=pretrain/continue --workdir=runs/domain --config.data.dir=records \
        --config.init_from=runs/base
    bert-jax pretrain --config=pretrain/continue --workdir=runs/domain --config.data.dir=records \
        --config.init_from=runs/base --config.data.replay=general --config.data.replay_share=0.1

init_from is a work directory, a Hugging Face folder or a TF1 checkpoint of any family; the architecture is
taken from it. Both records must be made with its vocabulary. In the second command, a tenth of the rows of
each batch is general text, so that less is forgotten. A checkpoint without pre-training heads, such as a
sentence encoder, needs --config.init_ignore='mlm/.*|nsp/.*', and more steps for the new heads.

The learning rate warms up over the first twentieth of the steps to half of the pre-training rate, then decays
to 0: with a higher rate, the model forgets more. Set --config.steps to a few epochs of your text;
docs/pretraining.md has the rest.
"""

from bert_jax.settings import defaults


def get_config():
    c = defaults.pretrain("base")  # for the dropout; init_from sets the sizes
    c.requires = "init_from"
    c.batch_size = 32
    c.steps = 10_000
    c.optimizer.learning_rate = 5e-5
    c.optimizer.warmup_steps, c.optimizer.warmup_fraction = 0, 0.05
    c.checkpoint.every = 500
    c.eval.every = 500
    c.log_every = 50
    return c
