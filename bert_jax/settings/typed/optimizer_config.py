"""The fields of a run's configuration that define the optimizer and the schedule of its learning rate."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from bert_jax.settings.config_fields import Part, amount, option, share

# The fields of `optimizer` that only some schedules use, by schedule.
SCHEDULE_FIELDS: Mapping[str, tuple[str, ...]] = {
    "warmup_then_decay": ("final_rate",),
    "cosine": ("final_rate",),
    "triangle": ("initial_rate", "final_rate"),
    "wsd": ("cooldown_steps", "cooldown", "final_rate"),
}
WITHOUT_END = ("constant", "inverse_square_root")  # schedules that do not depend on the number of steps


@dataclasses.dataclass(frozen=True)
class OptimizerConfig(Part):
    """The optimizer and the schedule of its learning rate."""

    name: str = option(
        "adamw",
        "`adamw`, without bias correction, as google-research/bert; `adamw_bias_corrected`; `lamb`, "
        "bias-corrected as in tensorflow/models; `lamb_uncorrected`, as in ALBERT; `stable_adamw`, as "
        "ModernBERT ([optimizers.md](optimizers.md)); or the name of any "
        "optimizer of [optax](https://optax.readthedocs.io) or optax.contrib whose updates are in proportion "
        "to its learning rate, such as `adafactor` (with norms of single layers), `lion`, `muon` (matrices "
        "of the layers; the rest by Adam) or `sgd`",
    )
    args: str = option(
        "",
        'arguments of an optimizer of optax, as Python writes them: `b1=0.95, mu_dtype="bfloat16"`; its '
        "learning rate and weight decay are those of the config, and `optimizer.b1`, `b2` and `eps` are not "
        "used",
    )
    schedule: str = option(
        "reference",
        "`reference`: warm-up, then a decay that counts from step 0; `warmup_then_decay`, both linear; "
        "`cosine`, `inverse_square_root`, `constant`; `product`, of the warm-up and a linear decay from "
        "step 0, as ELECTRA's; `triangle`, as `warmup_then_decay` from `optimizer.initial_rate` on, as "
        "crammed BERT's; `wsd`: warm-up, constant, and a cooldown in the last steps, as ModernBERT's "
        "([optimizers.md](optimizers.md))",
    )
    learning_rate: float = amount(1e-4, "the largest learning rate of the schedule")
    warmup_steps: int = option(
        10_000, "steps in which the learning rate rises; in fine-tuning 0 takes `warmup_fraction`"
    )
    initial_rate: float = share(
        0.0, "the learning rate at step 0, as a fraction of the largest; only the schedule `triangle`"
    )
    final_rate: float = share(
        0.0,
        "the learning rate at the end of the decay, as a fraction of the largest; only the schedules "
        "`warmup_then_decay`, `cosine`, `triangle` and `wsd`",
    )
    cooldown_steps: int = option(0, "the last steps of the schedule `wsd`, in which the learning rate falls")
    cooldown: str = option(
        "linear",
        "how the learning rate falls in them: `linear`, or `sqrt`: by 1 - sqrt(n / cooldown_steps) at the "
        "n-th of them",
    )
    weight_decay: float = amount(
        0.01,
        "decoupled: it is multiplied by the learning rate alone. A rate that other programs multiply by the "
        "schedule, without the learning rate, is divided by the largest learning rate here",
    )
    no_decay: str = option(
        r"(.*/)?(bias|scale)",
        "regular expression: parameters that do not decay, biases and LayerNorm's by default; empty: all "
        "decay, as in fairseq. It matches "
        "whole names, such as `encoder/embeddings/word_embeddings` and `encoder/layers/0/query/kernel`",
        type="regex",
    )
    b1: float = option(0.9, "decay rate of the first moment of Adam and LAMB", minimum=0, below=1)
    b2: float = option(0.999, "decay rate of the second moment of Adam and LAMB", minimum=0, below=1)
    eps: float = option(
        1e-6, "added to the root of the second moment by Adam and LAMB", minimum=1e-37, maximum=10**6
    )
    clip_norm: float = option(
        1.0,
        "the largest norm of the gradient, to which it is scaled down; 0 for none",
        minimum=0,
        maximum=10**30,
    )
    rates: str = option(
        "",
        "factors of the learning rate for groups of parameters, `REGEX=FACTOR` with semicolons between, "
        "such as `encoder/embeddings/.*=0.1; classifier/.*=10`; the first match counts",
    )
    freeze: str = option(
        "",
        "regular expression: parameters that stay as they are, such as `encoder/embeddings/.*` or "
        "`encoder/layers/[0-5]/.*`",
        type="regex",
    )
    decay_steps: int = 0
    warmup_fraction: float = 0.0
    layer_decay: float = 1.0


@dataclasses.dataclass(frozen=True)
class PretrainOptimizerConfig(OptimizerConfig):
    """The optimizer of pre-training."""

    decay_steps: int = option(
        0, "the step at which the decay ends, if it is not `steps`, as in the first of two phases"
    )
    warmup_fraction: float = option(
        0.0,
        "share of the schedule in which the learning rate rises, in place of `optimizer.warmup_steps`, which "
        "is then 0",
        minimum=0,
        below=1,
    )


@dataclasses.dataclass(frozen=True)
class FinetuneOptimizerConfig(OptimizerConfig):
    """The optimizer of fine-tuning."""

    layer_decay: float = option(
        1.0,
        "ratio of a layer's learning rate to that of the layer above, as ELECTRA's .8 (Large: .9)",
        above=0,
        maximum=1,
    )
