"""GLUE's BiLSTM baselines (Wang et al. 2019), with and without attention, against a pre-trained encoder.

    bert-jax sweep --experiment=bilstm --workdir=runs/bilstm --model=all-MiniLM-L6-v2 --data=glue=glue

The BiLSTMs use the word embeddings of the checkpoint; the paper used GloVe.
"""

from bert_jax.runs.sweep import Experiment, Variant, finetuning

LSTM = {"encoder_size": 384, "optimizer.learning_rate": 1e-3, "epochs": 4.0}
PAIRS = ("MRPC", "STS-B", "RTE")


def get_experiment():
    return Experiment(
        "BiLSTMs against a pre-trained encoder",
        variants=[
            Variant("encoder"),
            Variant("BiLSTM", tune={"*": LSTM | {"encoder": "bilstm"}}),
            Variant(
                "BiLSTM with attention", tune={"*": LSTM | {"encoder": "bilstm_attention"}}, measures=PAIRS
            ),
            Variant(
                "BiLSTM, random embeddings", tune={"*": LSTM | {"encoder": "bilstm", "from_scratch": True}}
            ),
        ],
        measures=[finetuning(task, rate=1e-4) for task in ("CoLA", "SST-2", *PAIRS)],
        published="""
GLUE's averages on the test sets: BiLSTM 63.9, with attention 63.9, with ELMo 66.4, with both 66.5. The
BERT paper's table 1: BiLSTM, ELMo and attention 71.0, OpenAI GPT 75.1, BERT-Base 79.6, BERT-Large 82.1.
""",
    )
