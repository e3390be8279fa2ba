"""Classification of texts, or pairs of texts, in your own TSV, CSV or JSON lines files.

    bert-jax finetune --config=finetune/classification --workdir=runs/reviews \
        --config.init_from=runs/mini --config.data.train=train.csv --config.data.eval=dev.csv \
        --config.data.text_a=review --config.data.label=stars

For pairs, set --config.data.text_b=COLUMN; for numbers instead of labels, --config.task=regression. Texts
longer than --config.max_seq_length are truncated, or split into windows with --config.doc_stride=64. The
hyperparameters are the paper's (appendix A.3), which tried learning rates of 5e-5, 3e-5 and 2e-5 with 2 to 4
epochs of batches of 16 or 32 and kept the best on the evaluation file. Small models need a higher rate: 1e-4
to 3e-4. Without --config.init_from the model is trained from scratch: finetune/classification:SIZE and
--config.vocab=FILE.
"""

from bert_jax import tasks


def get_config(size: str = "base"):
    c = tasks.default_config(size or "base")
    # c.batch_size = 32 and the like are set here; `bert-jax configs --fields` lists the fields.
    return c
