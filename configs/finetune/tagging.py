"""Tags of words in your own files: named entities, parts of speech, chunks.

    bert-jax finetune --config=finetune/tagging --workdir=runs/entities \
        --config.init_from=runs/base --config.data.train=train.conll --config.data.eval=dev.conll

Files have CoNLL columns (the word first, the tag last, or --config.data.text_a=0 --config.data.label=3) or
are JSON lines with `words` and `tags`. --config.document_context=true fills rows with the surrounding
sentences. Small models need a higher rate: 1e-4 to 3e-4. finetune/tagging:SIZE has the defaults of a size.
"""

from bert_jax import tasks


def get_config(size: str = "base"):
    c = tasks.default_config(size or "base", "tagging")
    # c.batch_size = 32 and the like are set here; `bert-jax configs --fields` lists the fields.
    return c
