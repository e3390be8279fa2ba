"""Sentence embeddings from your own pairs, in TSV, CSV or JSON lines files.

    bert-jax finetune --config=finetune/embedding --workdir=runs/search --config.init_from=runs/mini \
        --config.data.train=pairs.tsv --config.data.text_a=question --config.data.text_b=answer \
        --config.data.eval=glue/STS-B/dev.tsv --config.data.eval_columns=sentence1,sentence2,score

Each text_a learns to find its text_b among those of the whole batch, which should therefore be large:
--config.accumulate_steps=N computes a batch in N parts, with the same result in less memory. Hard negatives
are further columns (--config.data.negatives). Pairs with scores are trained by --config.loss=cosent, pairs
with classes, such as NLI, by --config.loss=classes, and single texts by leaving text_b out (SimCSE) or by
--config.loss=denoising (TSDAE). docs/embeddings.md has the rest. finetune/embedding:SIZE with
--config.vocab=FILE trains from scratch.
"""

from bert_jax import tasks


def get_config(size: str = "base"):
    c = tasks.default_config(size or "base", "embedding")
    c.optimizer.name = "adamw_bias_corrected"
    c.optimizer.schedule = "warmup_then_decay"
    return c
