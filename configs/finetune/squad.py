"""Question answering: SQuAD 1.1 (squad:v1), 2.0 with unanswerable questions (squad:v2), or your own.

    bert-jax finetune --config=finetune/squad:v1 --workdir=runs/squad \
        --config.init_from=runs/base --config.data_dir=squad

data_dir contains train-v1.1.json and dev-v1.1.json, or the files of v2.0; --config.data.train and
--config.data.eval name other files, in the same format or JSON lines. Hyperparameters are the paper's.
Published scores of BERT-Base (uncased) on the development set of 1.1: F1 88.4, exact match 81.2.
"""

from bert_jax import tasks
from bert_jax.errors import UserError


def get_config(version: str = "v1"):
    if version not in ("v1", "v2"):
        raise UserError(f"finetune/squad:{version}: expected finetune/squad:v1 or finetune/squad:v2")
    c = tasks.default_config("base", "squad2" if version == "v2" else "squad")
    # c.batch_size = 32 and the like are set here; `bert-jax configs --fields` lists the fields.
    return c
