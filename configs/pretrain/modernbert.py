"""ModernBERT (Warner et al. 2024) and Ettin (Weller et al. 2025): the first phase, on rows of 1,024 tokens.

    bert-jax vocab --kind=bpe --special_tokens=bert --input='corpus/*.txt' --output=bpe.json --size=50368
    bert-jax data --input='corpus/*.txt' --vocab=bpe.json --nsp=none --full_sentences \
        --max_seq_length=1024 --output_dir=records
    bert-jax pretrain --config=pretrain/modernbert:modernbert-base --workdir=runs/modern \
        --config.data.dir=records

The argument is one of the sizes ettin-17m, ettin-32m, ettin-68m, ettin-150m, ettin-400m, ettin-1b,
modernbert-base (the default) and modernbert-large. The batch grows over the first tokens, 1.7 trillion tokens
follow at a constant learning rate, and a cooldown over the last 50 billion. A smaller budget is a smaller
`steps`: nothing before the cooldown depends on it. The numbers are those of AnswerDotAI/ModernBERT,
yamls/modernbert, and of Ettin's pretraining/configs/standard. docs/families/modernbert.md has the phases that
follow in the originals, and what differs from them. pretrain/ettin_tiny runs on a small machine.
"""

from bert_jax.errors import UserError
from bert_jax.settings import defaults

LENGTH = 1024
# Learning rate, and the share that a weight loses per step at this rate; billions of tokens of the warm-up,
# and of the growth of the batch; first and last number of rows.
SIZES = {
    "ettin-17m": (3e-3, 3e-4, 4, 125, 768, 4608),
    "ettin-32m": (3e-3, 3e-4, 4, 100, 768, 4608),
    "ettin-68m": (3e-3, 3e-4, 3, 75, 768, 4608),
    "ettin-150m": (8e-4, 1e-5, 3, 50, 768, 4608),
    "ettin-400m": (5e-4, 1e-5, 2, 10, 768, 4608),
    "ettin-1b": (5e-4, 5e-5, 2, 3, 768, 4608),
    "modernbert-base": (8e-4, 1e-5, 3, 50, 768, 4608),
    "modernbert-large": (5e-4, 1e-5, 2, 10, 448, 4928),
}


def _ramp(tokens: float, first: int, last: int) -> list[tuple[int, int]]:
    """Returns (step, rows): five sizes for equally many steps, of `tokens` together, and then the last."""
    rows = [first + i * (last - first) // 5 for i in range(6)]
    steps = tokens / LENGTH / sum(rows[:-1])
    return [(round(i * steps), size) for i, size in enumerate(rows)]


def _steps(tokens: float, ramp: list[tuple[int, int]]) -> int:
    """Returns the number of steps that see `tokens`."""
    for (begin, rows), (end, _) in zip(ramp, [*ramp[1:], (10**9, 0)], strict=True):
        if tokens <= (seen := (end - begin) * rows * LENGTH):
            break
        tokens -= seen
    return begin + round(tokens / (rows * LENGTH))


def get_config(size: str = "modernbert-base"):
    if size not in SIZES:
        raise UserError(f"size {size!r}: expected one of {', '.join(SIZES)}")
    rate, decay, warmup, growth, first, last = SIZES[size]
    ramp = _ramp(growth * 1e9, first, last)
    # Dropout behind attention alone; the base of all rotary angles is 10,000 until the rows get longer.
    dropout = dict(hidden_dropout_prob=0.1, embedding_dropout=0.0, inner_dropout=0.0)
    c = defaults.pretrain(size, rotary_theta=10_000.0, **dropout)
    c.batch_size = last
    c.batch_ramp = ", ".join(f"{step}={rows}" for step, rows in ramp)
    c.steps = _steps(1_719e9 + 50e9, ramp)
    c.optimizer.name = "stable_adamw"
    c.optimizer.learning_rate = rate
    c.optimizer.weight_decay = decay / rate
    c.optimizer.b2 = 0.98
    c.optimizer.clip_norm = 0.0
    c.optimizer.schedule = "wsd"
    c.optimizer.warmup_steps = _steps(warmup * 1e9, ramp)
    c.optimizer.cooldown_steps = round(50e9 / (last * LENGTH))
    c.optimizer.cooldown = "sqrt"
    c.masking.prob = 0.3
    c.eval_masking.prob = 0.15
    return c
