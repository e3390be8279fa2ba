"""NeoBERT (Le Breton et al. 2025): pre-norm, RMSNorm, SwiGLU, rotary positions; rows of 1,024 tokens.

    bert-jax data --input='corpus/*.txt' --vocab=vocab.txt --nsp=none --full_sentences \
        --max_seq_length=1024 --output_dir=records
    bert-jax pretrain --config=pretrain/neobert --workdir=runs/neobert --config.data.dir=records

One million steps of 2,048 rows, the learning rate of the published configuration, [MASK] for every chosen
token. The masked LM head is BERT's, tied to the word embeddings, where NeoBERT's is one untied matrix. It is
not compared with its authors' code, and its checkpoints are work directories.
"""

from bert_jax.settings import defaults


def get_config():
    c = defaults.pretrain("neobert")
    c.batch_size = 2048
    c.steps = 1_000_000
    c.optimizer.name = "adamw_bias_corrected"
    c.optimizer.learning_rate = 1e-4
    c.optimizer.b2 = 0.95
    c.optimizer.eps = 1e-8
    c.optimizer.schedule = "cosine"
    c.optimizer.warmup_steps = 2_000
    c.optimizer.decay_steps = 900_000
    c.optimizer.final_rate = 0.1
    c.masking.prob = 0.2
    c.masking.replace = "1, 0, 0"
    return c
