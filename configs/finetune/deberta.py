"""A task of GLUE with DeBERTa v3's hyperparameters for a size: deberta:TASK or deberta:TASK,SIZE.

    bert-jax finetune --config=finetune/deberta:mrpc,large --workdir=runs/mrpc \
        --config.init_from=microsoft/deberta-v3-large --config.data_dir=glue

Sizes are xsmall, small, base (the default) and large. microsoft/DeBERTa (experiments/glue) publishes rate,
batch, epochs, warm-up and the number of tokens for large on every task, and for the other sizes on MNLI. On
other tasks, the smaller sizes use their MNLI rate and the other settings of large, because no settings are
published. The head has the checkpoint's dropout; the published runs of large set
--config.model.classifier_dropout to .1 for CoLA, SST-2 and STS-B, .2 for MRPC, QNLI and QQP, and .3 for MNLI
and RTE.
"""

from bert_jax import tasks
from bert_jax.errors import UserError

# Settings of large: learning rate, batch, epochs, warm-up, tokens.
SETTINGS = {
    "cola": (5.5e-6, 32, 10.0, 50, 64),
    "stsb": (7e-6, 32, 4.0, 50, 128),
    "sst2": (6e-6, 32, 8.0, 500, 128),
    "mnli": (7e-6, 64, 2.0, 500, 256),
    "qnli": (7e-6, 64, 6.0, 200, 512),
    "qqp": (1e-5, 64, 6.0, 1000, 320),
    "rte": (1e-5, 32, 6.0, 50, 320),
    "mrpc": (6e-6, 32, 6.0, 50, 128),
}
# Settings for MNLI: learning rate, epochs, warm-up.
SIZES = {
    "xsmall": (4.5e-5, 3.0, 1000),
    "small": (4.5e-5, 3.0, 1500),
    "base": (1.5e-5, 3.0, 1000),
    "large": (7e-6, 2.0, 500),
}


def get_config(arguments: str = ""):
    task, _, size = arguments.partition(",")
    task = tasks.chosen("finetune/deberta", task, SETTINGS)
    if size and size not in SIZES:
        raise UserError(f"size {size!r} of DeBERTa is unknown; choose one of {', '.join(SIZES)}")
    c = tasks.default_config("base", task)
    rate, c.batch_size, c.epochs, warmup, c.max_seq_length = SETTINGS[task]
    if task == "mnli":
        rate, c.epochs, warmup = SIZES[size or "base"]
    elif size != "large":
        rate = SIZES[size or "base"][0]
    c.optimizer.learning_rate, c.optimizer.warmup_steps = rate, warmup
    c.optimizer.schedule = "warmup_then_decay"
    return c
