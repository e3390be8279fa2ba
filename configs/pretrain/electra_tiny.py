"""An ELECTRA to try things out on a laptop: 4 layers of 128, and a generator of 64.

bert-jax pretrain --config=pretrain/electra_tiny --workdir=runs/electra_tiny --config.data.dir=records

The loss begins at ln V + 50 ln 2, and the discriminator's loss falls below ln 2 within a few hundred steps.
"""

from bert_jax.settings import defaults


def get_config():
    c = defaults.pretrain("tiny", model_type="electra", num_hidden_layers=4, embedding_size=64)
    c.objective = "replaced_tokens"
    c.replaced_tokens.generator_hidden_size = 64
    c.masking.count, c.masking.replace = "electra", "0.85,0,0.15"
    c.batch_size = 32
    c.steps = 20_000
    c.optimizer.schedule = "product"
    c.optimizer.learning_rate = 1e-3
    c.optimizer.warmup_steps = 1000
    return c
