"""Configuration that pre-training and fine-tuning have in common.

Config files are ml_collections, which `bert_jax.settings.defaults` makes from these classes. A run converts
its config once, by `pretrain_config.pretraining` or by `bert_jax.tasks.fields.finetuning`, and passes on the
dataclass.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from etils import epy

from bert_jax.models.config import Architecture, EncoderConfig, Execution, from_dict
from bert_jax.settings.config_fields import Part, Rule, amount, fixed, free, option, share

with epy.lazy_imports():  # It imports jax, which `estimate` has to set up after it has read the config.
    from bert_jax.objectives import distillation


@dataclasses.dataclass(frozen=True)
class ModelConfig(Execution, Architecture, Part):
    """The fields of an encoder and of its execution."""

    vocab_size: int = fixed(0, "Rows of the word embeddings. 0: the size of the vocabulary.", maximum=10**8)

    def encoder(self) -> EncoderConfig:
        """Returns the configuration of the encoder."""
        return from_dict(self.to_dict())


# Optimizers that read `optimizer.b1`, `b2` and `eps`.
OWN_OPTIMIZERS = ("adamw", "adamw_bias_corrected", "lamb", "lamb_uncorrected", "stable_adamw")
# Optimizers of optax, which read `optimizer.args`. Their updates are proportional to the learning rate, and
# they treat all elements of a parameter in the same way, so stacking over layers does not change the results.
OPTAX_OPTIMIZERS = (
    "adabelief", "adadelta", "adagrad", "adam", "adamax", "adamaxw", "adan", "ademamix", "adopt", "amsgrad",
    "lion", "muon", "nadam", "nadamw", "radam", "rmsprop", "sgd", "signum", "yogi",
)  # fmt: skip
# The fields of `optimizer` that only some schedules use, by schedule.
SCHEDULE_FIELDS: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(("reference", "inverse_square_root", "constant", "product"), ()),
    "warmup_then_decay": ("final_rate",),
    "cosine": ("final_rate",),
    "triangle": ("initial_rate", "final_rate"),
    "wsd": ("cooldown_steps", "cooldown", "final_rate"),
}


@dataclasses.dataclass(frozen=True)
class OptimizerConfig(Part):
    """The optimizer and the schedule of its learning rate."""

    name: str = option(
        "adamw",
        "Optimizer: `adamw` (without bias correction), `adamw_bias_corrected`, `lamb`, `lamb_uncorrected`, "
        "`stable_adamw`, or one of optax, such as `muon` or `sgd`.",
        choices=(*OWN_OPTIMIZERS, *OPTAX_OPTIMIZERS),
    )
    args: str = option(
        "",
        "Keyword arguments of an optax optimizer, such as `b1=0.95`, instead of `optimizer.b1`, `b2` and "
        "`eps`.",
    )
    schedule: str = option(
        "reference",
        "Learning rate schedule: `reference` (BERT), `warmup_then_decay`, `cosine`, "
        "`inverse_square_root`, `constant`, `product` (ELECTRA), `triangle` or `wsd`.",
        choices=tuple(SCHEDULE_FIELDS),
    )
    learning_rate: float = amount(1e-4, "Largest learning rate of the schedule.")
    warmup_steps: int = option(
        10_000,
        "Steps of warm-up. 0: `warmup_fraction` in fine-tuning, else `optimizer.warmup_fraction`.",
    )
    initial_rate: float = share(0.0, "Learning rate at step 0 as a fraction of the largest (`triangle`).")
    final_rate: float = share(
        0.0,
        "Final learning rate as a fraction of the largest (`warmup_then_decay`, `cosine`, `triangle`, "
        "`wsd`).",
    )
    cooldown_steps: int = option(0, "Steps of the final cooldown (`wsd`).")
    cooldown: str = option(
        "linear",
        "Form of the cooldown: `linear`, or `sqrt`, 1 - sqrt(n / `cooldown_steps`).",
        choices=("linear", "sqrt"),
    )
    weight_decay: float = amount(0.01, "Decoupled weight decay, which is multiplied by the learning rate.")
    no_decay: str = option(
        r"(.*/)?(bias|scale)",
        "Parameters without weight decay: a regular expression for full names such as "
        "`encoder/layers/0/query/kernel`.",
        type="regex",
    )
    b1: float = option(0.9, "Decay rate of the first moment (Adam and LAMB).", minimum=0, below=1)
    b2: float = option(0.999, "Decay rate of the second moment (Adam and LAMB).", minimum=0, below=1)
    eps: float = option(
        1e-6, "Constant added to the root of the second moment (Adam and LAMB).", minimum=1e-37, maximum=10**6
    )
    clip_norm: float = option(1.0, "Maximum norm of the gradient. 0: no clipping.", minimum=0, maximum=10**30)
    rates: str = option(
        "",
        "Learning rate factors, such as `encoder/embeddings/.*=0.1; classifier/.*=10`; the first match "
        "counts.",
    )
    freeze: str = option(
        "", "Parameters to freeze: a regular expression such as `encoder/layers/[0-5]/.*`.", type="regex"
    )
    decay_steps: int = 0
    warmup_fraction: float = 0.0
    layer_decay: float = 1.0


@dataclasses.dataclass(frozen=True)
class PretrainOptimizerConfig(OptimizerConfig):
    """The optimizer of pre-training."""

    decay_steps: int = option(0, "Step at which the decay ends. 0: `steps`.")
    warmup_fraction: float = option(
        0.0, "Warm-up as a fraction of the schedule, with `optimizer.warmup_steps=0`.", minimum=0, below=1
    )


@dataclasses.dataclass(frozen=True)
class FinetuneOptimizerConfig(OptimizerConfig):
    """The optimizer of fine-tuning."""

    layer_decay: float = option(
        1.0,
        "Ratio of a layer's learning rate to the next layer's. ELECTRA: 0.8 (Large: 0.9).",
        above=0,
        maximum=1,
    )


BOTTLENECKS = ("houlsby", "pfeiffer")  # the values of `adapter.kind` with separate modules


@dataclasses.dataclass(frozen=True)
class AdapterConfig(Part):
    """Parameter-efficient training: the few parameters that are trained instead of all."""

    kind: str = fixed(
        "",
        "What to train in addition to the new head: `lora`, `bitfit` (biases), `houlsby` or `pfeiffer` "
        "(bottlenecks), or `head` (nothing else). Empty: everything.",
        choices=("", "lora", "bitfit", "houlsby", "pfeiffer", "head"),
    )
    size: int = fixed(
        0,
        "Width of the bottleneck. 0: 64 (`houlsby`) or `model.hidden_size` / 16 (`pfeiffer`).",
        maximum=2**20,
    )
    rank: int = fixed(8, "Rank of the LoRA updates.", minimum=1, maximum=2**16)
    alpha: float = fixed(16.0, "LoRA updates are multiplied by alpha / rank.", above=0, maximum=10**6)
    targets: str = fixed(
        "",
        "Layers with LoRA updates, from `query,key,value,attention_output,intermediate,output`. Empty: the "
        "model family's, mostly `query,value`.",
    )
    train: str = fixed(
        "", "Further parameters to train: a regular expression such as `pooler/.*`.", type="regex"
    )

    def model_fields(self, hidden_size: int) -> dict[str, int]:
        """Returns the fields of `EncoderConfig` that the adapter sets, for a model of this width."""
        if self.kind == "houlsby":
            return dict.fromkeys(("attention_adapter", "output_adapter"), self.size or 64)
        if self.kind == "pfeiffer":
            return {"output_adapter": self.size or max(1, hidden_size // 16)}
        return {}


@dataclasses.dataclass(frozen=True)
class DistillationConfig(Part):
    """The teacher of the trained model, and the terms of the distillation loss."""

    teacher: str = option(
        "", "Checkpoint of the teacher, in any format that `init_from` accepts. Empty: no distillation."
    )
    losses: str = option(
        "logits=5, task=2, cosine=1",
        "Weights of the losses `logits`, `cosine`, `embeddings`, `hidden`, `scores`, `attention`, `values`, "
        "and `task`, the loss without a teacher.",
    )
    temperature: float = option(2.0, "Temperature of the softmax of both models.", above=0, maximum=1000)
    layers: str = option(
        "",
        "Teacher layers, from 0, that `hidden` and `scores` compare, such as `2,5,8,11`. Empty: evenly "
        "spaced up to the last.",
    )
    init_layers: str = ""


@dataclasses.dataclass(frozen=True)
class PretrainDistillationConfig(DistillationConfig):
    """Distillation in pre-training; the defaults are DistilBERT's."""

    init_layers: str = option(
        "",
        "Teacher layers that initialize the student, such as `0,2,4,7,9,11`, or `spread`, evenly spaced. "
        "Empty: none.",
    )


# Upper bounds that no real run reaches prevent a typing mistake from causing an overflow or a request for all
# of the machine's memory.


@dataclasses.dataclass(frozen=True)
class MeshConfig(Part):
    """Sizes of the axes of the device mesh."""

    data: int = free(
        -1,
        "Devices that split the batch. One of the three sizes may be -1: all other devices.",
        minimum=-1,
        maximum=2**20,
    )
    fsdp: int = free(1, "Devices that split the batch and the parameters.", minimum=-1, maximum=2**20)
    tensor: int = free(1, "Devices that split each matmul.", minimum=-1, maximum=2**20)
    shard_optimizer: bool = free(
        False, "Split the optimizer's state, but not the parameters, over `data` (ZeRO-1)."
    )
    reduce_dtype: str = option(
        "float32",
        "Type in which devices exchange gradients. `bfloat16` halves the traffic; needs fsdp=1 and tensor=1.",
        choices=("float32", "bfloat16"),
    )


@dataclasses.dataclass(frozen=True)
class CheckpointConfig(Part):
    """When checkpoints are saved, and which of them are kept."""

    every: int = free(1000, "Steps between checkpoints. 0: only at the end.")
    minutes: float = free(
        0.0,
        "Also save when the last checkpoint is this many minutes old. 0: never.",
        minimum=0,
        maximum=10**6,
    )
    keep: int = free(3, "Number of newest checkpoints to keep.", minimum=1)
    keep_every: int = free(0, "Also keep the checkpoints at multiples of this step. 0: none.")


@dataclasses.dataclass(frozen=True)
class EvalConfig(Part):
    """When a run is evaluated."""

    every: int = free(
        1000, "Steps between evaluations. 0: only at the end, or in fine-tuning once per epoch."
    )


@dataclasses.dataclass(frozen=True)
class RunConfig(Part):
    """Fields that pre-training and fine-tuning have in common.

    In fine-tuning, `steps` follows from `epochs`, and `resume_from`, another run whose state pre-training
    resumes from, is empty.
    """

    seed: int = option(
        0, "Random seed for initial weights, data order, masking and dropout.", maximum=2**32 - 1
    )
    model: ModelConfig = ModelConfig()
    batch_size: int = option(256, "Rows per step, over all devices and hosts.", minimum=1, maximum=2**20)
    accumulate_steps: int = free(
        1,
        "Microbatches per step; more save memory and give the same result. 0: the fewest that fit.",
        maximum=2**20,
    )
    steps: int = 0
    optimizer: OptimizerConfig = OptimizerConfig()
    adapter: AdapterConfig = AdapterConfig()
    distillation: DistillationConfig = DistillationConfig()
    mesh: MeshConfig = MeshConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()
    eval: EvalConfig = EvalConfig()
    trackers: str = free("", "`wandb` also logs to Weights & Biases.", choices=("", "wandb"))
    log_every: int = free(100, "Steps between two lines of metrics.", minimum=1)
    resume_from: str = ""
    init_from: str = option(
        "",
        "Checkpoint to start from: a work directory, one of its `checkpoints/STEP`, a Hugging Face folder or "
        "hub name, or a TF1 prefix.",
    )
    init_ignore: str = option(
        "", "Parameters that `init_from` or the model need not have: a regular expression.", type="regex"
    )
    max_skipped_steps: int = free(
        20,
        "Consecutive skipped steps that end the run. A step is skipped if its loss, gradient or new state is "
        "not finite.",
        minimum=1,
    )


def _schedule_uses(field: str) -> Callable[[Any], bool]:
    return lambda c: field in SCHEDULE_FIELDS.get(c.optimizer.schedule, ())


def _compares_layers(c: Any) -> bool:
    if not c.distillation.teacher:
        return False
    return not distillation.parse_scales(c.distillation.losses).keys().isdisjoint(distillation.LAYERED)


# The fields that only some runs use.
RULES: Sequence[Rule] = (
    ("init_ignore", lambda c: c.init_from, "init_from"),
    *((f"optimizer.{field}", _schedule_uses(field), f"a schedule with {field}")
      for field in ("initial_rate", "final_rate", "cooldown_steps", "cooldown")),
    ("optimizer.initial_rate",
     lambda c: c.optimizer.warmup_steps or c.optimizer.warmup_fraction, "a warm-up"),
    ("optimizer.warmup_fraction", lambda c: not c.optimizer.warmup_steps, "optimizer.warmup_steps=0"),
    ("optimizer.b1 optimizer.b2 optimizer.eps", lambda c: c.optimizer.name in OWN_OPTIMIZERS,
     f"one of the optimizers {', '.join(OWN_OPTIMIZERS)}; others take optimizer.args"),
    ("optimizer.args", lambda c: c.optimizer.name not in OWN_OPTIMIZERS, "an optimizer of optax"),
    ("optimizer.decay_steps", lambda c: c.optimizer.schedule not in ("constant", "inverse_square_root"),
     "a schedule with an end"),
    ("optimizer.freeze", lambda c: not c.adapter.kind, "no adapter.kind, which freezes the rest"),
    ("adapter.kind", lambda c: getattr(c, "resume_from", "") or (
        c.init_from and not getattr(c, "from_scratch", False)), "trained weights, init_from"),
    ("adapter.train", lambda c: c.adapter.kind, "adapter.kind"),
    ("adapter.rank adapter.alpha adapter.targets", lambda c: c.adapter.kind == "lora", "adapter.kind=lora"),
    ("adapter.size", lambda c: c.adapter.kind in BOTTLENECKS, "adapter.kind=houlsby or pfeiffer"),
    ("distillation.losses distillation.init_layers", lambda c: c.distillation.teacher,
     "distillation.teacher"),
    ("distillation.temperature", lambda c: c.distillation.teacher and "logits" in c.distillation.losses,
     "logits in distillation.losses"),
    ("distillation.layers", _compares_layers, "hidden or scores in distillation.losses"),
    ("init_from", lambda c: not getattr(c.distillation, "init_layers", ""),
     "no distillation.init_layers, which takes the weights of the teacher"),
)  # fmt: skip
