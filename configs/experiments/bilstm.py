"""GLUE's BiLSTM baselines (Wang et al. 2019), with and without attention, beside a trained encoder.

    bert-jax sweep --experiment=bilstm --workdir=runs/bilstm --checkpoint=all-MiniLM-L6-v2 --data=glue=glue

The BiLSTMs read the word embeddings of the checkpoint. Those of the paper read GloVe's.
"""

from bert_jax.settings.experiments import Arm, Experiment, Finetuning

TUNED = {
    "optimizer.name": "adamw_bias_corrected",
    "optimizer.schedule": "warmup_then_decay",
    "optimizer.learning_rate": 1e-4,
    "epochs": 3.0,
}
LSTM = TUNED | {"encoder_size": 384, "optimizer.learning_rate": 1e-3, "epochs": 4.0}
PAIRS = ("MRPC", "RTE", "STS-B")


def get_experiment():
    def task(name, config, metric, **fields):
        return Finetuning(name, f"finetune/glue:{config}", "glue", (metric,), fields)

    return Experiment(
        "BiLSTMs against a trained encoder",
        arms=[
            Arm("encoder", tune={"*": TUNED}),
            Arm("BiLSTM", tune={"*": LSTM | {"encoder": "bilstm"}}),
            Arm("BiLSTM with attention", tune={"*": LSTM | {"encoder": "bilstm_attention"}}, measures=PAIRS),
            Arm("BiLSTM, random embeddings", tune={"*": LSTM | {"encoder": "bilstm", "from_scratch": True}}),
        ],
        measures=[
            task("CoLA", "cola", "matthews"),
            task("SST-2, 10,000 rows", "sst2", "accuracy", train_rows=10_000),
            task("MRPC", "mrpc", "f1"),
            task("STS-B", "stsb", "pearson"),
            task("RTE", "rte", "accuracy"),
        ],
        published="""
GLUE's averages on the test sets: BiLSTM 63.9, with attention 63.9, with ELMo 66.4, with both 66.5. The
BERT paper's table 1: BiLSTM, ELMo and attention 71.0, OpenAI GPT 75.1, BERT-Base 79.6, BERT-Large 82.1.
""",
    )
