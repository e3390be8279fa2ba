"""A task of GLUE with ELECTRA's hyperparameters for a size: electra:TASK or electra:TASK,SIZE.

    bert-jax finetune --config=finetune/electra:mrpc,small --workdir=runs/mrpc \
        --config.init_from=runs/electra --config.data_dir=glue

Sizes are small, base (the default) and large. The rates are 3e-4, 1e-4 and 5e-5. The layer decay is .8
(large: .9), and there are 3 epochs (RTE and STS-B: 10), as in google-research/electra (its README and
configure_finetuning.py). MRPC and STS-B are trained on each pair in both orders (double_unordered).
"""

from bert_jax import tasks
from bert_jax.errors import UserError

# Size: learning rate, layer decay.
SIZES = {"small": (3e-4, 0.8), "base": (1e-4, 0.8), "large": (5e-5, 0.9)}


def get_config(arguments: str = ""):
    task, _, size = arguments.partition(",")
    task = tasks.chosen("finetune/electra", task, [spec.name for spec in tasks.GLUE])
    if size and size not in SIZES:
        raise UserError(f"size {size!r} of ELECTRA is unknown; choose one of {', '.join(SIZES)}")
    c = tasks.default_config("base", task)
    c.optimizer.learning_rate, c.optimizer.layer_decay = SIZES[size or "base"]
    c.double_unordered = task in ("mrpc", "stsb")
    c.epochs = 10.0 if task in ("rte", "stsb") else 3.0
    return c
