"""What learns most in a given time on a small machine: objectives, architectures and optimizers.

    bert-jax sweep --experiment=hour --workdir=runs/hour --input='wiki/*' --input_format=wikiextractor \
        --data=glue=glue --data=conll=conll2003

The first arms lead from BERT's pre-training to pretrain/hour; the others change one thing of it. The controls
are models with random weights, and with trained embeddings under random layers.
"""

from bert_jax.settings import config_files
from bert_jax.settings.experiments import (
    SST_2,
    Arm,
    Budget,
    Experiment,
    HeldOut,
    MinimalPairs,
    Pretraining,
    finetuning_small,
)

SHARED = (  # of all models: their size, and how large their weights start
    "num_hidden_layers",
    "hidden_size",
    "num_attention_heads",
    "intermediate_size",
    "initializer_range",
)
TASKS = ("STS-B", SST_2, "CoNLL-2003")
SCRATCH = {"from_scratch": True}


def hour(run):
    """Returns pretrain/hour."""
    return config_files.load("pretrain/hour")


def changed(fields):
    """Returns the config of pretrain/hour with other values of some fields, by their dotted names."""

    def config(run):
        c = hour(run)
        c.update_from_flattened_dict(fields)
        return c

    return config


def bert(run):
    """Returns BERT's form of the size of pretrain/hour, with its batches, optimizer, masks and start."""
    c, ours = config_files.load("pretrain/mini"), hour(run)
    for name in SHARED:
        c.model[name] = ours.model[name]
    c.batch_size, c.optimizer = ours.batch_size, ours.optimizer
    c.masking, c.eval_masking = ours.masking, ours.eval_masking
    c.optimizer.learning_rate = 1e-3  # with the norms last, 2e-3 stays at the frequencies of words
    return c


def norms_first(run):
    """Returns BERT's form with the norms before attention and feed-forward."""
    c = bert(run)
    c.model.norm_placement, c.model.final_norm = "pre", True
    c.optimizer.learning_rate = hour(run).optimizer.learning_rate
    return c


def rotary(run):
    """Returns the same with rotary positions."""
    c = norms_first(run)
    c.model.position = "rotary"
    return c


def left_to_right_first(run):
    """Returns pretrain/hour with 40% of the steps from left to right, and then masked LM."""
    c = hour(run)
    c.causal_steps = run.share(0.4)
    return c


def replaced_tokens(run):
    """Returns ELECTRA of the same size, in BERT's form."""
    c, like = config_files.load("pretrain/electra_tiny"), bert(run)
    for name in SHARED:
        c.model[name] = like.model[name]
    c.model.scan_unroll = 0
    c.batch_size, c.optimizer, c.eval_masking = like.batch_size, like.optimizer, like.eval_masking
    return c


def get_experiment():
    muon = changed(
        {
            "optimizer.name": "muon",
            "optimizer.args": "consistent_rms=0.2, adam_b2=0.98",
            "optimizer.b2": 0.999,
        }
    )
    return Experiment(
        "What learns most in a given time",
        arms=[
            Arm("next sentence", Pretraining(bert, "pairs")),
            Arm("masked LM", Pretraining(bert, "rows")),
            Arm("norms first", Pretraining(norms_first, "rows")),
            Arm("rotary positions", Pretraining(rotary, "rows")),
            Arm("hour", Pretraining(hour, "rows")),
            Arm("15% masked", Pretraining(changed({"masking.prob": 0.15}), "rows")),
            Arm("small weights", Pretraining(changed({"model.initializer_range": 0.02}), "rows")),
            Arm("Muon", Pretraining(muon, "rows")),
            Arm("left to right first", Pretraining(left_to_right_first, "rows")),
            Arm("replaced tokens", Pretraining(replaced_tokens, "rows")),
            Arm("random weights", start="hour", tune={"*": SCRATCH}, measures=TASKS),
            Arm(
                "embeddings alone",
                start="hour",
                tune={"*": SCRATCH | {"init_keep": "encoder/embeddings/.*"}},
                measures=TASKS,
            ),
        ],
        measures=[
            HeldOut("held out", "rows"),
            MinimalPairs(),
            *(finetuning_small(task, {"model.classifier_pooling": "mean"}) for task in ("STS-B", "SST-2")),
            finetuning_small("CoNLL-2003"),
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
