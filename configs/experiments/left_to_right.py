"""The paper's table 5: no next-sentence prediction, left to right, and a BiLSTM on top of left to right.

    bert-jax sweep --experiment=left_to_right --workdir=runs/left-to-right --checkpoint=all-MiniLM-L6-v2 \
        --input='wiki/*' --input_format=wikiextractor --data=glue=glue --data=conll=conll2003 \
        --data=squad=squad

A model from random weights learns nothing within minutes that these tasks show, so all arms continue the
pre-training of one checkpoint, each with its own objective.
"""

from bert_jax.settings import config_files
from bert_jax.settings.experiments import Arm, Budget, Experiment, Pretraining, finetuning

LEFT_TO_RIGHT = "left to right"


def continued(run):
    """Returns the continued pre-training of the checkpoint."""
    c = config_files.load("pretrain/continue")
    c.init_from, c.init_ignore = run.checkpoint, "(mlm|nsp|pooler)/.*"
    c.optimizer.learning_rate = 1e-4
    return c


def left_to_right(run):
    """Returns the same with causal attention, predicting the next token."""
    c = continued(run)
    c.objective, c.model.causal = "causal_lm", True
    return c


def get_experiment():
    return Experiment(
        "Next sentences, and both directions",
        arms=[
            Arm("masked LM and next sentence", Pretraining(continued, "pairs")),
            Arm("masked LM", Pretraining(continued, "rows")),
            Arm(LEFT_TO_RIGHT, Pretraining(left_to_right, "rows", explicit=("causal",))),
            Arm(
                "left to right and BiLSTM",
                start=LEFT_TO_RIGHT,
                tune={"*": {"head": "bilstm", "head_size": 384}},
            ),
        ],
        measures=[
            finetuning("SQuAD", 1e-4, epochs=1.0, max_seq_length=256),
            finetuning("CoNLL-2003", 1e-4, epochs=2.0),
            finetuning("MRPC", 1e-4),
            finetuning("SST-2", 1e-4, epochs=2.0),
        ],
        budget=Budget(seconds=2400),
        records={"rows": ("--nsp=none", "--full_rows"), "pairs": ()},
        published="""
The paper's table 5, BERT-Base, on the development sets:

| | MNLI-m | QNLI | MRPC | SST-2 | SQuAD F1 |
|---|---|---|---|---|---|
| masked LM and next sentence | 84.4 | 88.4 | 86.7 | 92.7 | 88.5 |
| masked LM | 83.9 | 84.9 | 86.5 | 92.6 | 87.9 |
| left to right | 82.1 | 84.3 | 77.5 | 92.1 | 77.8 |
| left to right and BiLSTM | 82.1 | 84.1 | 75.7 | 91.6 | 84.9 |

There every model is pre-trained from random weights. Here all start from one that has seen both directions,
and have minutes to forget or keep that. The paper does not say which token its left-to-right model
classifies; here it is the last one, the only one that has seen the text.
""",
    )
