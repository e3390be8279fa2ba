"""Multiple choice: multiple_choice:swag, multiple_choice:codah, or your own questions.

    bert-jax finetune --config=finetune/multiple_choice:codah --workdir=runs/codah \
        --config.init_from=runs/base --config.data.train=train.tsv --config.data.eval=dev.tsv
    bert-jax finetune --config=finetune/multiple_choice --workdir=runs/mine \
        --config.init_from=runs/base --config.data.train=train.csv --config.data.eval=dev.csv \
        --config.data.text_a=question --config.data.choices=a,b,c --config.data.label=right

The right choice is a number from 0, or a letter from A. data.text_b names the column of a text that every
choice goes on from, as SWAG's sent2. Texts longer than --config.max_length are cut, or with
--config.doc_stride=64 have windows, 64 tokens apart, whose predictions are averaged. Hyper-parameters are the
paper's (section 4.4): batches of 16 questions, 2e-5, three epochs.
"""

from bert_jax import tasks


def get_config(task: str = ""):
    config = tasks.default_config("base")
    config.task = tasks.get(task).name if task else "multiplechoice"
    config.batch_size = 16
    config.optimizer.learning_rate = 2e-5
    return config
