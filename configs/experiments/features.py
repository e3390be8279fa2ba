"""The paper's table 7: named-entity recognition by fine-tuning and with features from a frozen model.

    bert-jax sweep --experiment=features --workdir=runs/features --model=all-MiniLM-L6-v2 \
        --data=conll=conll2003

The model has 6 layers instead of BERT-Base's 12.
"""

from bert_jax.runs.sweep import Experiment, Variant, finetuning

FROZEN = {"frozen": True, "head": "bilstm", "head_size": 256, "optimizer.learning_rate": 1e-3, "epochs": 6.0}
VARIANTS = {
    "fine-tuned": {},
    "embeddings": FROZEN | {"feature_layers": "0"},
    "second to last": FROZEN | {"feature_layers": "-2"},
    "last": FROZEN | {"feature_layers": "-1"},
    "weighted sum of the last four": FROZEN | {"feature_layers": "-4,-3,-2,-1", "feature_mix": "weighted"},
    "concatenation of the last four": FROZEN | {"feature_layers": "-4,-3,-2,-1"},
    "weighted sum of all": FROZEN | {"feature_layers": "1,2,3,4,5,6", "feature_mix": "weighted"},
}


def get_experiment():
    return Experiment(
        "Fine-tuning against features from a frozen model",
        variants=[Variant(name, tune={"CoNLL-2003": fields}) for name, fields in VARIANTS.items()],
        measures=[finetuning("CoNLL-2003", rate=1e-4)],
        published="""
The paper's table 7, BERT-Base, F1 on the development set: fine-tuned 96.4; features: embeddings 91.0, second
to last 95.6, last 94.9, weighted sum of the last four 95.9, their concatenation 96.1, weighted sum of all 12
95.5. That model is cased and reads the whole document, and its BiLSTM has 768 units; here it has 256.
""",
    )
