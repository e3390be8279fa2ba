"""ModernBERT (Warner et al. 2024) and Ettin (Weller et al. 2025): the first phase, on rows of 1,024 tokens.

    bert-jax vocab --kind=bpe --special_tokens=bert --input='corpus/*.txt' --output=bpe.json --size=50368
    bert-jax data --input='corpus/*.txt' --vocab=bpe.json --nsp=none --full_sentences \
        --max_seq_length=1024 --output_dir=records
    bert-jax pretrain --config=pretrain/modernbert:modernbert-base --workdir=runs/modern \
        --config.data.dir=records

The argument is one of the sizes ettin-17m, ettin-32m, ettin-68m, ettin-150m, ettin-400m, ettin-1b,
modernbert-base (the default) and modernbert-large. Batches grow from 768 to 4,608 rows over 50 billion
tokens; 1.7 trillion tokens follow at a constant learning rate, and a cooldown over the last 50 billion. A
smaller budget is a smaller `steps`: nothing before the cooldown depends on it. docs/families/modernbert.md
says what differs from the published runs. pretrain/ettin_tiny runs on a small machine.
"""

from bert_jax.errors import UserError
from bert_jax.settings import defaults

# The learning rate, and the share that a weight loses per step at this rate.
RATES = {
    "ettin-17m": (3e-3, 3e-4),
    "ettin-32m": (3e-3, 3e-4),
    "ettin-68m": (3e-3, 3e-4),
    "ettin-150m": (8e-4, 1e-5),
    "ettin-400m": (5e-4, 1e-5),
    "ettin-1b": (5e-4, 5e-5),
    "modernbert-base": (8e-4, 1e-5),
    "modernbert-large": (5e-4, 1e-5),
}


def get_config(size: str = "modernbert-base"):
    if size not in RATES:
        raise UserError(f"size {size!r}: expected one of {', '.join(RATES)}")
    c = defaults.pretrain(size)
    c.batch_size = 4608
    # Six sizes for a sixth of 50 billion tokens each, in steps of ROWS x 1,024 tokens.
    c.batch_ramp = "0=768, 10600=1536, 15900=2304, 19430=3072, 22080=3840, 24200=4608"
    c.steps = 390_000
    rate, decay = RATES[size]
    c.optimizer.name = "stable_adamw"
    c.optimizer.learning_rate = rate
    c.optimizer.weight_decay = decay / rate
    c.optimizer.b2 = 0.98
    c.optimizer.clip_norm = 0.0
    c.optimizer.schedule = "wsd"
    c.optimizer.warmup_steps = 3_800  # three billion tokens
    c.optimizer.cooldown_steps = 10_600
    c.optimizer.cooldown = "sqrt"
    c.masking.prob = 0.3
    return c
