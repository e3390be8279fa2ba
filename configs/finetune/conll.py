"""Named entities of CoNLL-2003 (Tjong Kim Sang and De Meulder 2003).

    bert-jax finetune --config=finetune/conll --workdir=runs/conll \
        --config.init_from=runs/base --config.data_dir=conll2003

data_dir contains eng.train and eng.testa (or train.txt and valid.txt). Use a cased checkpoint if possible:
case distinguishes names. With the context of the whole document (--config.document_context=true) and a cased
model, the paper has a development F1 of .964 for Base and .966 for Large, and .961 for a frozen Base
(--config.frozen=true --config.head=bilstm, which needs a higher rate).
"""

from bert_jax import tasks


def get_config(size: str = "base"):
    c = tasks.default_config(size or "base", "conll")
    # c.batch_size = 32 and the like are set here; `bert-jax configs --fields` lists the fields.
    return c
