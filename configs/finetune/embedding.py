"""Sentence embeddings from your own pairs, in TSV, CSV or JSON lines files.

    bert-jax finetune --config=finetune/embedding --workdir=runs/search --config.init_from=runs/mini \
        --config.data.train=pairs.tsv --config.data.text_a=question --config.data.text_b=answer \
        --config.data.eval=glue/STS-B/dev.tsv --config.data.eval_columns=sentence1,sentence2,score

The model learns to find the text_b of each text_a among all text_b of the batch, so batches should be large:
--config.accumulate_steps=N computes a batch in N microbatches, with the same result in less memory. Hard
negatives are additional columns (--config.data.negatives). Use --config.loss=cosent for pairs with scores and
--config.loss=classes for pairs with classes, such as NLI. For single texts, omit text_b (SimCSE) or use
--config.loss=denoising (TSDAE). docs/embeddings.md has the rest. finetune/embedding:SIZE with
--config.vocab=FILE trains from scratch.
"""

from bert_jax import tasks


def get_config(size: str = "base"):
    c = tasks.default_config(size or "base", "embedding")
    c.optimizer.name = "adamw_bias_corrected"
    c.optimizer.schedule = "warmup_then_decay"
    return c
