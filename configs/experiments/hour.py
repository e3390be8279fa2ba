"""The best pre-training in a small budget: objectives, architectures and optimizers.

    bert-jax sweep --experiment=hour --workdir=runs/hour --input='wiki/*' --input_format=wikiextractor \
        --data=glue=glue --data=conll=conll2003

The first variants lead from BERT's pre-training to pretrain/hour, and each of the others changes one setting
of pretrain/hour. The control has random weights.
"""

from bert_jax.runs.sweep import SST_2, Experiment, HeldOut, MinimalPairs, Variant, finetuning
from bert_jax.settings import config_files

# The same in all models: sizes and initialization.
SHARED = "num_hidden_layers hidden_size num_attention_heads intermediate_size initializer_range".split()
TASKS = ("STS-B", SST_2, "CoNLL-2003")


def bert(run):
    """Returns BERT with the size, initialization, batches, optimizer and masks of pretrain/hour."""
    c, ours = config_files.load("pretrain/mini"), config_files.load("pretrain/hour")
    for name in SHARED:
        c.model[name] = ours.model[name]
    c.batch_size, c.optimizer = ours.batch_size, ours.optimizer
    c.masking, c.eval_masking = ours.masking, ours.eval_masking
    c.optimizer.learning_rate = 1e-3  # at 2e-3, post-normalization learns only word frequencies
    return c


def norms_first(run):
    """Returns BERT with pre-normalization."""
    c = bert(run)
    c.model.norm_placement, c.model.final_norm = "pre", True
    c.optimizer.learning_rate = config_files.load("pretrain/hour").optimizer.learning_rate
    return c


def rotary(run):
    """Returns BERT with pre-normalization and rotary positions."""
    c = norms_first(run)
    c.model.position = "rotary"
    return c


def left_to_right_first(run):
    """Returns pretrain/hour with causal LM in the first 40% of the steps."""
    c = config_files.load("pretrain/hour")
    c.causal_steps = max(1, round(0.4 * run.steps))
    return c


def replaced_tokens(run):
    """Returns ELECTRA with the size, batches and optimizer of the BERT variant."""
    c, like = config_files.load("pretrain/electra_tiny"), bert(run)
    for name in SHARED:
        c.model[name] = like.model[name]
    c.model.scan_unroll = 0
    c.batch_size, c.optimizer, c.eval_masking = like.batch_size, like.optimizer, like.eval_masking
    return c


def get_experiment():
    muon = {
        "optimizer.name": "muon",
        "optimizer.args": "consistent_rms=0.2, adam_b2=0.98",
        "optimizer.b2": 0.999,
    }
    return Experiment(
        "Pre-training in a small budget",
        variants=[
            Variant("next sentence", bert, "pairs"),
            Variant("masked LM", bert, "rows"),
            Variant("pre-normalization", norms_first, "rows"),
            Variant("rotary positions", rotary, "rows"),
            Variant("hour", "pretrain/hour", "rows"),
            Variant("15% masked", "pretrain/hour", "rows", {"masking.prob": 0.15}),
            Variant("initialized at 0.02", "pretrain/hour", "rows", {"model.initializer_range": 0.02}),
            Variant("Muon", "pretrain/hour", "rows", muon),
            Variant("left-to-right first", left_to_right_first, "rows"),
            Variant("replaced tokens", replaced_tokens, "rows"),
            Variant("random weights", start="hour", tune={"*": {"from_scratch": True}}, measures=TASKS),
        ],
        measures=[
            HeldOut("held out", "rows"),
            MinimalPairs(),
            *(finetuning(task, {"model.classifier_pooling": "mean"}) for task in ("STS-B", "SST-2")),
            finetuning("CoNLL-2003"),
        ],
        budget="seconds=4800",
        vocabulary=("--size=8192",),
        records={"rows": ("--nsp=none", "--full_rows"), "pairs": ()},
        published="""
Geiping and Goldstein 2023 and Portes et al. 2023 gain most in a small budget by faster training: no
next-sentence prediction, no dropout, full rows, pre-normalization. Gisserot-Boukhlef et al. 2025 find causal
LM followed by masked LM to be best in a fixed budget.
""",
    )
