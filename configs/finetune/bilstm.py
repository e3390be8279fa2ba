"""GLUE's BiLSTM baseline (Wang et al. 2019) on one of its tasks: bilstm:TASK, or bilstm:TASK,attention.

    bert-jax finetune --config=finetune/bilstm:mrpc,attention --workdir=runs/mrpc \
        --config.init_from=runs/base --config.data_dir=glue

There is no Transformer: only the word embeddings and the vocabulary of init_from are used. Add
--config.optimizer.freeze='encoder/.*' to freeze the embeddings, or give --config.vocab=FILE instead of
init_from for random ones. They are vectors of word pieces, not the baseline's GloVe vectors of words, so the
published averages (63.9 with and without attention) are for another model. Adam, batches of 128, dropout of
.2, and stopping after 5 evaluations without a gain follow the baseline. The baseline has 1,500 units in each
direction and a rate of 1e-4, which it halves if the score stalls; here, 384 units start at 1e-3, which decays
linearly.
"""

from bert_jax import tasks
from bert_jax.errors import UserError

ENCODERS = {"": "bilstm", "attention": "bilstm_attention"}


def get_config(arguments: str = ""):
    task, _, attention = arguments.partition(",")
    task = tasks.chosen("finetune/bilstm", task, [spec.name for spec in tasks.GLUE])
    if attention not in ENCODERS:
        raise UserError(f"finetune/bilstm:{arguments}: expected finetune/bilstm:{task} or {task},attention")
    c = tasks.default_config("base", task)
    c.encoder = ENCODERS[attention]
    c.encoder_size = 384
    c.pack = False  # a BiLSTM reads a row token by token, so short rows are faster than full ones
    c.model.hidden_dropout_prob = 0.2
    c.optimizer.name, c.optimizer.schedule = "adamw_bias_corrected", "warmup_then_decay"
    c.optimizer.weight_decay = 0.0
    c.optimizer.learning_rate = 1e-3
    c.batch_size = 128
    c.epochs = 10.0
    c.early_stopping = 5
    return c
