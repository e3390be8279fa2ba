"""XNLI (Conneau et al. 2018): inference in 15 languages, trained on English (zero shot).

    bert-jax finetune --config=finetune/xnli --workdir=runs/xnli --model=CHECKPOINT
    bert-jax evaluate --workdir=runs/xnli --split=test

The data is hf:facebook/xnli, unless data_dir contains the extracted archives XNLI-1.0 and XNLI-MT-1.0. The
checkpoint with the best English accuracy is kept; --config.metrics=average,accuracy keeps the one with the
best average over languages, which suits training on translations (--config.data.train=FILE,FILE, the files of
one or several languages). Hyperparameters follow google-research/bert (multilingual.md): 5e-5, batches of 32,
2 epochs, 128 tokens.
Published accuracies of multilingual BERT-Base, uncased, zero shot: en .814, zh .638, es .743, de .705,
ar .621, ur .583.
"""

from bert_jax import tasks


def get_config():
    c = tasks.default_config("base", "xnli")
    c.optimizer.learning_rate, c.batch_size, c.epochs = 5e-5, 32, 2.0
    c.metrics = "accuracy_en,average,accuracy"
    return c
