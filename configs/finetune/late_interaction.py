"""Late interaction (ColBERT) from your own pairs of a query and a document, in TSV, CSV or JSON lines files.

    bert-jax finetune --config=finetune/late_interaction --workdir=runs/colbert --config.init_from=runs/mini \
        --config.data.train=pairs.tsv --config.data.text_a=question --config.data.text_b=answer \
        --config.data.negatives=negatives --config.data.eval=dev.tsv

Each token has a vector of 128 numbers (--config.vector_size). The model learns to find the document of each
query among all documents of the batch. Queries have 32 tokens (--config.query_length), and documents up to
180 (--config.max_seq_length). `bert-jax search --rerank=runs/colbert` reranks documents. docs/embeddings.md
has the rest. finetune/late_interaction:SIZE with --config.vocab=FILE trains from scratch.
"""

from bert_jax import tasks


def get_config(size: str = "base"):
    c = tasks.default_config(size or "base", "lateinteraction")
    c.optimizer.name = "adamw_bias_corrected"
    c.optimizer.schedule = "warmup_then_decay"
    c.optimizer.learning_rate = 1e-5  # as in ColBERTv2
    return c
