"""Two-step distillation: a DistilBERT on a task of GLUE or SQuAD with a fine-tuned teacher, distilbert:TASK.

    bert-jax finetune --config=finetune/distilbert:squad --workdir=runs/squad-student \
        --config.init_from=runs/distilbert --config.distillation.teacher=runs/squad-teacher \
        --config.data_dir=squad

The tasks are squad, squad2 and all GLUE tasks except STS-B, a regression task without class probabilities to
distill. The teacher is a model fine-tuned on the same task, such as a work directory of finetune/squad. The
loss is half the task loss plus half the divergence from the teacher's distributions at a temperature of 2, as
in the authors' code for SQuAD. Without a teacher, this is ordinary fine-tuning of a DistilBERT.
"""

from bert_jax import tasks

TASKS = [spec.name for spec in tasks.GLUE if spec.name != "stsb"] + ["squad", "squad2"]


def get_config(task: str = ""):
    name = tasks.chosen("finetune/distilbert", task, TASKS)
    c = tasks.default_config("base", name)
    c.optimizer.learning_rate = 3e-5 if name.startswith("squad") else 2e-5
    return c
