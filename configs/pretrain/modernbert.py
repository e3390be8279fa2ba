"""ModernBERT (Warner et al. 2024) and Ettin (Weller et al. 2025), on rows of 1,024 and then of 8,192 tokens.

    bert-jax vocab --kind=bpe --special_tokens=bert --input='corpus/*.txt' --output=bpe.json --size=50368
    bert-jax data --input='corpus/*.txt' --vocab=bpe.json --nsp=none --full_sentences \
        --max_seq_length=1024 --output=records
    bert-jax pretrain --config=pretrain/modernbert:modernbert-base --workdir=runs/modern \
        --config.data.dir=records

The argument is one of the sizes ettin-17m, ettin-32m, ettin-68m, ettin-150m, ettin-400m, ettin-1b,
modernbert-base (the default) and modernbert-large. The batch grows over the first tokens, 1.7 trillion tokens
follow at a constant learning rate, and the last 50 billion are a cooldown. For a smaller budget, reduce
`steps`: nothing before the cooldown depends on it. The numbers are from AnswerDotAI/ModernBERT,
yamls/modernbert, and from Ettin's standard pre-training. docs/families.md lists the differences.
pretrain/ettin_tiny runs on a small machine.

SIZE+8k and SIZE+decay are the following phases, with rows of 8,192 tokens. Each is a run that starts from the
weights of the previous one and has another base of the rotary angles:

    bert-jax pretrain --config=pretrain/modernbert:ettin-17m+8k --workdir=runs/modern-8k \
        --config.data.dir=records-8192 --config.init_from=runs/modern --config.model.rotary_theta=160000
    bert-jax pretrain --config=pretrain/modernbert:ettin-17m+decay --workdir=runs/modern-decay \
        --config.data.dir=better --config.init_from=runs/modern-8k --config.model.local_rotary_theta=160000

ModernBERT's local layers keep 10,000, so its +decay does not have the last flag.
"""

from bert_jax.errors import UserError
from bert_jax.settings import defaults

LENGTH = 1024
# Learning rate, and the fraction by which a weight decays per step at this rate; billions of tokens of the
# warm-up, and of the growth of the batch; first and last number of rows.
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
    """Returns (step, rows) pairs: five sizes for equally many steps, `tokens` in total, and then `last`."""
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


def _long(c, size: str, phase: str) -> None:
    """Sets the fields that differ in the phases on rows of 8,192 tokens: rows, steps, rates and masks."""
    c.requires = "init_from"
    rate, decay, *_ = SIZES[size]
    billions, c.batch_size = 250 if phase == "8k" else 50, 576  # as many tokens as 4,608 rows of 1,024
    c.optimizer.schedule, c.optimizer.cooldown = "wsd", "sqrt"
    if size.startswith("ettin"):  # both phases are cooldowns, the second from where the first one ends
        if size == "ettin-1b":
            billions /= 3
        c.optimizer.final_rate = 0.5 if phase == "8k" else 0.04
        if phase == "decay":
            rate /= 2
            c.masking.prob = 0.15
            c.model.local_rotary_theta = 160_000.0
    else:
        rate = 3e-4
        if size == "modernbert-large":
            rate, decay, c.batch_size = 5e-5, 1e-6, 616 if phase == "8k" else 624
        if phase == "8k":
            c.optimizer.schedule, c.optimizer.cooldown = "constant", "linear"
        else:
            c.optimizer.final_rate = 0.001
    c.steps = round(billions * 1e9 / (c.batch_size * 8192))
    c.optimizer.warmup_steps = 0
    c.optimizer.cooldown_steps = 0 if c.optimizer.schedule == "constant" else c.steps
    c.optimizer.learning_rate = rate
    c.optimizer.weight_decay = decay / rate


def get_config(argument: str = "modernbert-base"):
    size, _, phase = argument.partition("+")
    if size not in SIZES or phase not in ("", "8k", "decay"):
        raise UserError(f"{argument!r}: expected one of {', '.join(SIZES)}, alone or with +8k or +decay")
    # Dropout only after attention; the base of all rotary angles is 10,000 until the rows get longer.
    dropout = dict(hidden_dropout_prob=0.1, embedding_dropout=0.0, inner_dropout=0.0)
    c = defaults.pretrain(size, **dropout)
    c.optimizer.name = "stable_adamw"
    c.optimizer.b2 = 0.98
    c.optimizer.clip_norm = 0.0
    c.masking.prob, c.masking.count = 0.3, "bernoulli"
    # ModernBERT masks [CLS] and [SEP] like other tokens in its packed rows.
    c.masking.never_chosen = "special" if size.startswith("ettin") else "none"
    c.eval_masking.prob, c.eval_masking.never_chosen = 0.15, "special"
    c.model.scan_unroll = 0  # minutes to compile each number of rows; no copies of stacked activations
    if phase:
        _long(c, size, phase)
        return c
    rate, decay, warmup, growth, first, last = SIZES[size]
    ramp = _ramp(growth * 1e9, first, last)
    c.model.rotary_theta = 10_000.0
    c.batch_size = last
    c.batch_ramp = ", ".join(f"{step}={rows}" for step, rows in ramp)
    c.steps = _steps(1_719e9 + 50e9, ramp)
    c.optimizer.learning_rate = rate
    c.optimizer.weight_decay = decay / rate
    c.optimizer.schedule = "wsd"
    c.optimizer.warmup_steps = _steps(warmup * 1e9, ramp)
    c.optimizer.cooldown_steps = round(50e9 / (last * LENGTH))
    c.optimizer.cooldown = "sqrt"
    return c
