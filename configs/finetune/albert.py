"""An ALBERT on one task of GLUE or SQuAD with the paper's settings: albert:cola, ..., albert:squad, squad2.

    bert-jax finetune --config=finetune/albert:mrpc --workdir=runs/mrpc \
        --config.init_from=runs/albert --config.data_dir=glue

Learning rate, batch, steps, warm-up, length and encoder dropout follow Lan et al. 2020 (table 14), who chose
them for ALBERT-xxlarge. Steps are converted to epochs of the task's training rows. The dropout of the
classifier is .1, ALBERT's default. In the paper, RTE, STS-B and MRPC start from a model fine-tuned on MNLI;
to do the same, set --config.init_from to its work directory.

google-research/albert's run_glue.sh has the same learning rates, batches, steps, warm-up and length for GLUE.
For both versions of SQuAD, its README has 5e-5 and two epochs of rows of 384 tokens.
"""

from bert_jax import tasks

# Rows of the training file; learning rate, batch, encoder dropout, steps, warm-up, tokens per row.
SETTINGS = {
    "cola": (8_551, 1e-5, 16, 0.0, 5_336, 320, 512),
    "stsb": (5_749, 2e-5, 16, 0.0, 3_598, 214, 512),
    "sst2": (67_349, 1e-5, 32, 0.0, 20_935, 1_256, 512),
    "mnli": (392_702, 3e-5, 128, 0.0, 10_000, 1_000, 512),
    "qnli": (104_743, 1e-5, 32, 0.0, 33_112, 1_986, 512),
    "qqp": (363_846, 5e-5, 128, 0.1, 14_000, 1_000, 512),
    "rte": (2_490, 3e-5, 32, 0.1, 800, 200, 512),
    "mrpc": (3_668, 2e-5, 32, 0.0, 800, 200, 512),
    "wnli": (635, 2e-5, 16, 0.1, 2_000, 250, 512),
    "squad": (87_599, 5e-5, 48, 0.0, 3_649, 365, 384),
    "squad2": (130_319, 3e-5, 48, 0.0, 8_144, 814, 512),
}


def get_config(task: str = ""):
    name = tasks.chosen("finetune/albert", task, SETTINGS)
    c = tasks.default_config("base", name)
    rows, c.optimizer.learning_rate, c.batch_size, dropout, steps, warmup, c.max_seq_length = SETTINGS[name]
    c.epochs = round(steps * c.batch_size / rows, 2)
    c.optimizer.warmup_steps = warmup
    c.model.hidden_dropout_prob = c.model.attention_probs_dropout_prob = dropout
    return c
