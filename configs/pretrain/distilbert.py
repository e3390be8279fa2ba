"""DistilBERT (Sanh et al. 2019): a BERT of half the layers, distilled from a trained one with its vocabulary.

    bert-jax pretrain --config=pretrain/distilbert --workdir=runs/distilbert --config.data.dir=records \
        --config.distillation.teacher=bert-base-uncased

The student has 6 layers, no token types and no pooler, and starts with every other layer of the teacher. If
the teacher does not have 12 layers, set --config.model.num_hidden_layers to half of its number. The settings
follow the authors' code: the triple loss 5 x logits + 2 x masked LM + cosine at a temperature of 2, masks
that choose rare tokens more often, Adam with a rate of 5e-4, and 50 microbatches of 5 rows on each of 8 GPUs,
a batch of 2,000. Three epochs of Wikipedia and books in full rows of 512 tokens are about 12,500 steps; set
--config.steps for your records, and accumulate_steps to what fits into memory: logits are compared at every
token. docs/pretraining.md has the rest.
"""

from bert_jax.settings import defaults


def get_config():
    c = defaults.pretrain("base", num_hidden_layers=6, type_vocab_size=0, model_type="distilbert")
    c.model.scan_unroll = 0  # minutes of compilation, once; no copies of stacked activations in every step
    c.distillation.init_layers = "spread"
    c.masking.smoothing, c.masking.never_chosen = 0.7, "special"
    c.batch_size, c.steps = 2000, 12_500
    c.optimizer.name = "adamw_bias_corrected"
    c.optimizer.schedule = "warmup_then_decay"
    c.optimizer.learning_rate, c.optimizer.warmup_fraction, c.optimizer.warmup_steps = 5e-4, 0.05, 0
    c.optimizer.b2, c.optimizer.eps, c.optimizer.weight_decay = 0.98, 1e-6, 0.0
    c.optimizer.clip_norm = 5.0
    return c
