"""ELECTRA (Clark et al. 2020), electra:small, electra:base or electra:large.

Both networks together have 14M, 119M and 355M parameters.

    bert-jax pretrain --config=pretrain/electra:small --workdir=runs/electra --config.data.dir=records

Records have rows of 128 tokens for small, and of 512 for base and large (`bert-jax data --nsp=none`). The
hyperparameters are from the paper's appendix A and google-research/electra.
"""

from bert_jax.errors import UserError
from bert_jax.settings import defaults

# Sizes: encoder, embedding size, generator's hidden size; fraction of masked tokens; rate, batch, steps.
SIZES = {
    "small": ("L-12_H-256", 128, 64, 0.15, 5e-4, 128, 1_000_000),
    "base": ("base", 768, 256, 0.15, 2e-4, 256, 766_000),
    "large": ("large", 1024, 256, 0.25, 2e-4, 2048, 400_000),
}


def get_config(size: str = "small"):
    if size not in SIZES:
        raise UserError(
            f"size {size!r} of ELECTRA is unknown; choose electra:small, electra:base or electra:large"
        )
    encoder, embedding, generator, share, rate, batch, steps = SIZES[size]
    c = defaults.pretrain(encoder, model_type="electra", embedding_size=embedding)
    c.model.scan_unroll = 0  # minutes of compilation, once; no copies of stacked activations in every step
    c.objective = "replaced_tokens"
    c.replaced_tokens.generator_hidden_size = generator
    c.masking.prob = share
    c.masking.count, c.masking.replace = "electra", "0.85,0,0.15"
    c.batch_size = batch
    c.steps = steps
    c.optimizer.schedule = "product"
    c.optimizer.learning_rate = rate
    c.optimizer.warmup_steps = 10_000
    return c
