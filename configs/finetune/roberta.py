"""A RoBERTa on one task of GLUE or SQuAD with published settings: roberta:cola, ..., roberta:squad, squad2.

    bert-jax finetune --config=finetune/roberta:mrpc --workdir=runs/mrpc \
        --config.init_from=roberta-base --config.data_dir=glue

Learning rate, batch, updates and warm-up are fairseq's published values for the base model on GLUE (its page
on GLUE), and the paper's on SQuAD (appendix C, table 10). Updates are converted to epochs of the task's
training rows. Weight decay is .1 for GLUE and .01 for SQuAD, on every parameter, with b2=0.98 and no
clipping. In the paper, RTE, MRPC and STS-B start from a model fine-tuned on MNLI; to do the same, set
--config.init_from to its work directory.
"""

from bert_jax import tasks

# Rows of the training file; learning rate, batch, updates, warm-up.
SETTINGS = {
    "cola": (8_551, 1e-5, 16, 5_336, 320),
    "stsb": (5_749, 2e-5, 16, 3_598, 214),
    "sst2": (67_349, 1e-5, 32, 20_935, 1_256),
    "mnli": (392_702, 1e-5, 32, 123_873, 7_432),
    "qnli": (104_743, 1e-5, 32, 33_112, 1_986),
    "qqp": (363_846, 1e-5, 32, 113_272, 28_318),
    "rte": (2_490, 2e-5, 16, 2_036, 122),
    "mrpc": (3_668, 1e-5, 16, 2_296, 137),
    "squad": (87_599, 1.5e-5, 48, 3_650, 219),
    "squad2": (130_319, 1.5e-5, 48, 5_430, 326),
}


def get_config(task: str = ""):
    name = tasks.chosen("finetune/roberta", task, SETTINGS)
    c = tasks.default_config("base", name)
    rows, c.optimizer.learning_rate, c.batch_size, updates, c.optimizer.warmup_steps = SETTINGS[name]
    c.epochs = round(updates * c.batch_size / rows, 2)
    c.optimizer.name = "adamw_bias_corrected"
    c.optimizer.b2, c.optimizer.eps, c.optimizer.clip_norm = 0.98, 1e-6, 0.0
    c.optimizer.no_decay = ""
    c.optimizer.weight_decay = 0.01 if name.startswith("squad") else 0.1
    c.optimizer.schedule = "warmup_then_decay"
    c.max_seq_length = 384 if name.startswith("squad") else 512
    return c
