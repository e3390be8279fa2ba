"""XNLI (Conneau et al. 2018): inference in 15 languages: xnli:zero_shot, translate_train or translate_test.

    bert-jax finetune --config=finetune/xnli:zero_shot --workdir=runs/xnli \
        --config.init_from=CHECKPOINT --config.data_dir=xnli
    bert-jax evaluate --workdir=runs/xnli --split=test

data_dir holds XNLI-1.0 and XNLI-MT-1.0 as their archives have them. --config.languages=de,fr restricts the
evaluation, and with translate_train also the training: one language is the paper's TRANSLATE TRAIN, all 15
are XLM-R's translate-train-all. zero_shot keeps the checkpoint that is best on English alone, the others the
one with the best average; without English, zero_shot needs --config.metrics=average,accuracy.
Hyperparameters are those of google-research/bert (multilingual.md): 5e-5, batches of 32, 2 epochs, 128
tokens.
Published accuracies of multilingual BERT-Base, cased, translate_train (one language each): en .819, zh .766,
es .778, de .759, ar .707, ur .616; uncased, zero_shot: en .814, zh .638, es .743, de .705, ar .621, ur .583.
"""

from bert_jax import tasks
from bert_jax.errors import UserError
from bert_jax.tasks.xnli.task import TRANSFERS


def get_config(transfer: str = "zero_shot"):
    if transfer not in TRANSFERS:
        raise UserError(f"finetune/xnli:{transfer}: expected one of {', '.join(TRANSFERS)}")
    c = tasks.default_config("base", "xnli")
    c.transfer = transfer
    c.optimizer.learning_rate, c.batch_size, c.epochs = 5e-5, 32, 2.0
    if transfer == "zero_shot":
        c.metrics = "accuracy_en,average,accuracy"
    return c
