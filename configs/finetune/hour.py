"""Fine-tuning of pretrain/hour, and of other models with a few million parameters: hour:TASK.

    bert-jax finetune --config=finetune/hour:stsb --workdir=runs/stsb \
        --config.init_from=runs/hour --config.data_dir=glue

TASK is a task of GLUE, squad, conll, or any other task, such as classification or tagging for your own files.
Models of this size need a higher learning rate than BERT-Base. STS-B needs more epochs, no dropout and an
even higher rate; SST-2 needs much dropout. benchmarks/results/hour.md has the measurements; the other tasks
use settings that were good for most tasks.
"""

from bert_jax import tasks


def get_config(task: str = ""):
    name = tasks.chosen("finetune/hour", task, tasks.tasks())
    c = tasks.default_config("base", name)
    c.optimizer.name = "adamw_bias_corrected"
    c.optimizer.schedule = "warmup_then_decay"
    c.optimizer.learning_rate = 3e-4
    c.epochs = 3.0
    if name == "stsb":
        c.optimizer.learning_rate, c.epochs = 1e-3, 10.0
        c.model.hidden_dropout_prob = c.model.attention_probs_dropout_prob = 0.0
    if name == "sst2":
        c.epochs, c.model.hidden_dropout_prob = 5.0, 0.5
    return c
