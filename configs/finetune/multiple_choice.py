"""Multiple choice: multiple_choice:swag, multiple_choice:codah, or your own questions.

    bert-jax finetune --config=finetune/multiple_choice:codah --workdir=runs/codah \
        --config.init_from=runs/base --config.data_dir=codah
    bert-jax finetune --config=finetune/multiple_choice --workdir=runs/mine \
        --config.init_from=runs/base --config.data.train=train.csv --config.data.eval=dev.csv \
        --config.data.text_a=question --config.data.choices=a,b,c --config.data.label=right

data_dir contains train.tsv and dev.tsv of CODAH, or train.csv and val.csv of SWAG, as published by their
authors. In your own files, the right choice is a number from 0, or a letter from A; data.text_b names the
column of a text that every choice continues, like SWAG's sent2. Texts longer than --config.max_seq_length are
truncated.
Hyperparameters are the paper's (section 4.4): batches of 16 questions, 2e-5, three epochs.
"""

from bert_jax import tasks


def get_config(task: str = ""):
    c = tasks.default_config("base", task or "multiplechoice")
    # c.batch_size = 32 and the like are set here; `bert-jax configs --fields` lists the fields.
    return c
