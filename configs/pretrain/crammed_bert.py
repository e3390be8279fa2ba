"""crammed-BERT (Geiping and Goldstein 2023): an architecture for one day on one GPU, rows of 128 tokens.

    bert-jax data --input='corpus/*.txt' --vocab=vocab.txt --nsp=none --full_sentences --output=records
    bert-jax pretrain --config=pretrain/crammed_bert --workdir=runs/crammed --config.data.dir=records

The numbers are from JonasGeiping/cramming (config/arch/crammed-bert.yaml, config/train/bert-o4.yaml). Its
schedule is a triangle over a budget of 24 hours, and its batch grows to 8,192 rows over 60% of it. Here both
are counted in steps: set `steps` to the number that fits into the day. The masked LM head has no parameters
except the word embeddings. Checkpoints are work directories.
"""

from bert_jax.settings import defaults


def get_config():
    c = defaults.pretrain("crammed-bert")
    c.model.scan_unroll = 0  # minutes to compile each number of rows; no copies of stacked activations
    c.batch_size = 8192
    c.steps = 60_000
    c.batch_ramp = "0=2048, 12000=4096, 24000=6144, 36000=8192"
    c.optimizer.name = "adamw_bias_corrected"
    c.optimizer.learning_rate = 1e-3
    c.optimizer.b2 = 0.98
    c.optimizer.eps = 1e-12
    c.optimizer.clip_norm = 0.5
    c.optimizer.schedule = "triangle"
    c.optimizer.initial_rate = 0.25
    c.optimizer.warmup_steps = 45_000
    c.masking.prob, c.masking.never_chosen = 0.25, "none"
    return c
