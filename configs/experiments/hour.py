"""What learns most in a given time on a small machine: objectives, architectures and optimizers.

    bert-jax sweep --experiment=hour --workdir=runs/hour --input='wiki/*' --input_format=wikiextractor \
        --data=glue=glue --data=conll=conll2003

The first four arms lead from BERT's pre-training to pretrain/hour; the others change one thing of it. The
controls are models with random weights, and with trained embeddings under random layers.
"""

from bert_jax.settings import config_files
from bert_jax.settings.experiments import (
    Arm,
    Budget,
    Experiment,
    Finetuning,
    HeldOut,
    MinimalPairs,
    Pretraining,
)

TUNING = {
    "optimizer.name": "adamw_bias_corrected",
    "optimizer.schedule": "warmup_then_decay",
    "optimizer.learning_rate": 3e-4,
    "epochs": 3.0,
}
TASKS = ("STS-B", "SST-2, 10,000 rows", "CoNLL-2003")
SCRATCH = {"from_scratch": True}


def bert(run):
    """Returns BERT's form, with the optimizer, the batches and the lack of dropout of the hour."""
    c, hour = config_files.load("pretrain/mini"), modern(run)
    c.batch_size, c.optimizer, c.eval_masking = hour.batch_size, hour.optimizer, hour.eval_masking
    c.optimizer.learning_rate = 1e-3  # with the norms last, 2e-3 stays at the frequencies of words
    return c


def norms_first(run):
    """Returns BERT's form with the norms before attention and feed-forward."""
    c = bert(run)
    c.model.norm_placement, c.model.final_norm = "pre", True
    c.optimizer.learning_rate = 2e-3
    return c


def modern(run):
    """Returns ModernBERT's form."""
    return config_files.load("pretrain/hour")


def muon(run):
    """Returns the same with Muon for the matrices of the layers, whose updates are as large as Adam's."""
    c = modern(run)
    c.optimizer.name, c.optimizer.args, c.optimizer.b2 = "muon", "consistent_rms=0.2, adam_b2=0.98", 0.999
    return c


def left_to_right_first(run):
    """Returns the same with 40% of the steps from left to right, and then masked LM."""
    c = modern(run)
    c.causal_steps = run.share(0.4)
    return c


def replaced_tokens(run):
    """Returns ELECTRA of the same size as BERT's form."""
    c, classic = config_files.load("pretrain/electra_tiny"), bert(run)
    for name in ("hidden_size", "num_attention_heads", "intermediate_size", "num_hidden_layers"):
        c.model[name] = classic.model[name]
    c.model.scan_unroll = 0
    c.batch_size, c.optimizer, c.eval_masking = classic.batch_size, classic.optimizer, classic.eval_masking
    return c


def get_experiment():
    return Experiment(
        "What learns most in a given time",
        arms=[
            Arm("next sentence", Pretraining(bert, "pairs")),
            Arm("masked LM", Pretraining(bert, "rows")),
            Arm("norms first", Pretraining(norms_first, "rows")),
            Arm("modern", Pretraining(modern, "rows")),
            Arm("Muon", Pretraining(muon, "rows")),
            Arm("left to right first", Pretraining(left_to_right_first, "rows")),
            Arm("replaced tokens", Pretraining(replaced_tokens, "rows")),
            Arm("random weights", start="modern", tune={"*": SCRATCH}, measures=TASKS),
            Arm(
                "embeddings alone",
                start="modern",
                tune={"*": SCRATCH | {"init_keep": "encoder/embeddings/.*"}},
                measures=TASKS,
            ),
        ],
        measures=[
            HeldOut("held out", "rows"),
            MinimalPairs(),
            Finetuning("STS-B", "finetune/glue:stsb", "glue", ("pearson",), TUNING),
            Finetuning(
                "SST-2, 10,000 rows",
                "finetune/glue:sst2",
                "glue",
                ("accuracy",),
                TUNING | {"train_rows": 10_000},
            ),
            Finetuning("CoNLL-2003", "finetune/conll", "conll", ("f1",), TUNING),
        ],
        budget=Budget(seconds=4800),
        vocabulary=("--size=8192",),
        records={"rows": ("--nsp=none", "--full_rows"), "pairs": ()},
        published="""
Geiping and Goldstein 2023 and Portes et al. 2023 find much of the gain of a small budget in what costs no
quality: no next-sentence prediction, no dropout, full rows, norms first. Gisserot-Boukhlef et al. 2025 find
left to right first, then masked tokens, to be best at a fixed budget.
""",
    )
