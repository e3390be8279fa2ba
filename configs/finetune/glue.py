"""One task of GLUE, from the hub or its TSV files: glue:cola, sst2, mrpc, stsb, qqp, mnli, qnli, rte or wnli.

    bert-jax finetune --config=finetune/glue:mrpc --workdir=runs/mrpc \
        --config.init_from=runs/base --config.data_dir=glue

data_dir contains MRPC/train.tsv and MRPC/dev.tsv as in GLUE's archive. Hyperparameters are the paper's.
Published scores of BERT-Base with them, on the development sets (cased, mean of 5 seeds): CoLA Matthews .590,
SST-2 accuracy .922, MRPC F1 .890 and accuracy .844, STS-B Pearson .889, RTE accuracy .648.
"""

from bert_jax import tasks
from bert_jax.errors import UserError


def get_config(task: str = ""):
    if not task:
        names = [spec.name for spec in tasks.GLUE]
        raise UserError(f"which task of GLUE? --config=finetune/glue:TASK with one of {', '.join(names)}")
    c = tasks.default_config("base", task)
    # c.batch_size = 32 and the like are set here; `bert-jax configs --fields` lists the fields.
    return c
