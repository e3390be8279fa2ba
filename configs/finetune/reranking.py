"""A reranker from your own queries, each with a relevant document and others, in TSV, CSV or JSON lines.

    bert-jax finetune --config=finetune/reranking --workdir=runs/reranker --config.init_from=runs/mini \
        --config.data.train=hard.jsonl --config.data.text_a=question --config.data.text_b=answer \
        --config.data.negatives=negatives --config.data.eval=dev.jsonl

The model reads the query with each candidate, and learns to score the document of data.text_b higher than the
negatives, which `search --input` can find. `bert-jax search --rerank=runs/reranker` orders documents with it.
Rows have up to 180 tokens (--config.max_seq_length). docs/embeddings.md has the rest. finetune/reranking:SIZE
with --config.vocab=FILE trains from scratch.
"""

from bert_jax import tasks


def get_config(size: str = "base"):
    c = tasks.default_config(size or "base", "reranking")
    c.optimizer.name = "adamw_bias_corrected"
    c.optimizer.schedule = "warmup_then_decay"
    return c
