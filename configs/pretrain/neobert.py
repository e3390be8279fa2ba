"""NeoBERT (Le Breton et al. 2025): pre-norm, RMSNorm, SwiGLU, rotary positions; rows of 1,024 tokens.

    bert-jax data --input='corpus/*.txt' --vocab=vocab.txt --nsp=none --full_sentences \
        --max_seq_length=1024 --output=records
    bert-jax pretrain --config=pretrain/neobert --workdir=runs/neobert --config.data.dir=records

It has one million steps of 2,048 rows, [MASK] for every chosen token, and an untied masked LM head of one
matrix. The numbers are from chandar-lab/NeoBERT (conf/ and jobs/neobert.sh); its paper may have others. A
second phase has 50,000 steps of 512 rows of 4,096 tokens (jobs/neobert-4096.sh). The original samples its
initial weights from a uniform distribution over +-.02. Checkpoints are work directories.
"""

from bert_jax.settings import defaults


def get_config():
    c = defaults.pretrain("neobert")
    c.model.scan_unroll = 0  # minutes of compilation, once; no copies of stacked activations in every step
    c.batch_size = 2048
    c.steps = 1_000_000
    c.optimizer.name = "adamw_bias_corrected"
    c.optimizer.learning_rate = 1e-4
    c.optimizer.b2 = 0.95
    c.optimizer.no_decay = ""
    c.optimizer.eps = 1e-8
    c.optimizer.schedule = "cosine"
    c.optimizer.warmup_steps = 2_000
    c.optimizer.decay_steps = 900_000
    c.optimizer.final_rate = 0.1
    c.masking.prob, c.masking.count, c.masking.never_chosen = 0.2, "bernoulli", "special"
    c.masking.replace = "1, 0, 0"
    return c
