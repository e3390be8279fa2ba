"""MosaicBERT-Base (Portes et al. 2023): BERT with ALiBi and gated feed-forward blocks, rows of 128 tokens.

    bert-jax data --input='corpus/*.txt' --vocab=vocab.txt --nsp=none --full_sentences --output=records
    bert-jax pretrain --config=pretrain/mosaicbert --workdir=runs/mosaic --config.data.dir=records

It trains 70,000 steps of 4,096 rows. It is not compared with its authors' code, and it has no file format of
other programs: its checkpoints are work directories.
"""

from bert_jax.settings import defaults


def get_config():
    c = defaults.pretrain("mosaicbert-base")
    c.model.scan_unroll = 0  # minutes of compilation, once; no copies of stacked activations in every step
    c.batch_size = 4096
    c.steps = 70_000
    c.optimizer.name = "adamw_bias_corrected"
    c.optimizer.learning_rate = 5e-4
    c.optimizer.weight_decay = 0.02  # 1e-5 at the largest rate, in Composer's terms
    c.optimizer.b2 = 0.98
    c.optimizer.clip_norm = 0.0
    c.optimizer.schedule = "warmup_then_decay"
    c.optimizer.warmup_steps = 4_200
    c.optimizer.final_rate = 0.02
    c.masking.prob, c.masking.count, c.masking.never_chosen = 0.3, "bernoulli", "special"
    c.eval_masking.prob = 0.15
    return c
