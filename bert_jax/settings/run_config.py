"""What the configurations of pre-training and of fine-tuning have in common.

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

    vocab_size: int = fixed(0, "rows of the word embeddings; 0: those of the vocabulary", maximum=10**8)

    def replace(self, **changes: Any) -> ModelConfig:
        """Returns the configuration with some fields replaced."""
        return ModelConfig(**self.to_dict() | changes)

    def encoder(self) -> EncoderConfig:
        """Returns the configuration of the encoder."""
        return from_dict(self.to_dict())


# The fields of `optimizer` that only some schedules use, by schedule.
SCHEDULE_FIELDS: Mapping[str, tuple[str, ...]] = {
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
        "`adamw`, without bias correction, as google-research/bert; `adamw_bias_corrected`; `lamb`, "
        "bias-corrected as in tensorflow/models; `lamb_uncorrected`, as in ALBERT; `stable_adamw`, as "
        "ModernBERT ([optimizers.md](optimizers.md)); or the name of any "
        "optimizer of [optax](https://optax.readthedocs.io) or optax.contrib whose updates are in proportion "
        "to its learning rate, such as `lion`, `muon` (matrices of the layers; the rest by Adam) or "
        "`sgd`",
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
        "factors of the learning rate for groups of parameters, `REGEX=FACTOR` separated by semicolons, "
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
        "fraction of the schedule in which the learning rate rises, instead of "
        "`optimizer.warmup_steps`, which is then 0",
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


BOTTLENECKS = ("houlsby", "pfeiffer")  # the values of `adapter.kind` with modules of their own


@dataclasses.dataclass(frozen=True)
class AdapterConfig(Part):
    """Which few parameters are trained in place of all of them."""

    kind: str = fixed(
        "",
        "`lora`: low-rank updates of some kernels; `bitfit`: the biases of the encoder; `houlsby`: new "
        "bottleneck modules after both halves of each layer, and the norms; `pfeiffer`: such modules after "
        "the feed-forward block; `head`: the head alone; empty: every parameter. The new head of a "
        "fine-tuning is trained with each of them, and everything else is frozen; see [LoRA and other "
        "adapters](lora.md)",
    )
    size: int = fixed(
        0,
        "width of the bottleneck of `houlsby` and `pfeiffer`; 0: 64, and `model.hidden_size` / 16",
        maximum=2**20,
    )
    rank: int = fixed(8, "the rank of LoRA's updates", minimum=1, maximum=2**16)
    alpha: float = fixed(16.0, "LoRA's updates are multiplied by alpha / rank", above=0, maximum=10**6)
    targets: str = fixed(
        "",
        "dense layers with an update, separated by commas: `query`, `key`, `value`, `attention_output`, "
        "`intermediate` and `output`; empty for the family's, in general `query,value`",
    )
    train: str = fixed(
        "",
        "regular expression: further parameters to train, such as `pooler/.*`, which is frozen as in PEFT",
        type="regex",
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
    """The teacher of the model that is trained, and how the two are compared."""

    teacher: str = option(
        "",
        "checkpoint of a model that the trained one imitates, of any kind that `init_from` takes; empty for "
        "none; see [distillation](distillation.md)",
    )
    losses: str = option(
        "logits=5, task=2, cosine=1",
        "what is compared, `NAME=SCALE` separated by commas: `logits`; `cosine` of the last states; "
        "`embeddings`, `hidden` and attention `scores`, squared differences; `attention` and the relations "
        "between `values`, divergences in the last layer; and `task`, the loss without a teacher",
    )
    temperature: float = option(
        2.0, "both models' logits are divided by it before they are compared", above=0, maximum=1000
    )
    layers: str = option(
        "",
        "for `hidden` and `scores`: the teacher's layer, from 0, for each layer of the student, such as "
        "`2,5,8,11`; empty: every n-th one up to the last",
    )
    init_layers: str = ""


@dataclasses.dataclass(frozen=True)
class PretrainDistillationConfig(DistillationConfig):
    """Distillation in pre-training; the defaults are DistilBERT's."""

    init_layers: str = option(
        "",
        "the model starts with these layers of the teacher, such as `0,2,4,7,9,11`, and has its widths, "
        "vocabulary and positions; `spread`: as many as `model.num_hidden_layers`, evenly from the first to "
        "the last; empty: as without a teacher",
    )


# Upper bounds that no real run reaches prevent a typing mistake from causing an overflow or a request for all
# of the machine's memory.


@dataclasses.dataclass(frozen=True)
class MeshConfig(Part):
    """How the devices are divided."""

    data: int = free(
        -1,
        "devices among which the batch is split; one of the three may be -1, all other devices",
        minimum=-1,
        maximum=2**20,
    )
    fsdp: int = free(
        1, "devices among which the batch and the parameters are split", minimum=-1, maximum=2**20
    )
    tensor: int = free(1, "devices among which each matrix product is split", minimum=-1, maximum=2**20)


@dataclasses.dataclass(frozen=True)
class CheckpointConfig(Part):
    """When checkpoints are saved, and which of them stay."""

    every: int = free(1000, "steps between two checkpoints; 0: at the end alone")
    minutes: float = free(
        0.0,
        "a checkpoint is also saved when the last one is this many minutes old; 0: by steps alone",
        minimum=0,
        maximum=10**6,
    )
    keep: int = free(3, "number of newest checkpoints to keep", minimum=1)
    keep_every: int = free(0, "checkpoints of multiples of this step stay too; 0: none")


@dataclasses.dataclass(frozen=True)
class EvalConfig(Part):
    """When a run is evaluated."""

    every: int = free(
        1000, "steps between two evaluations; 0: at the end alone, in fine-tuning once an epoch"
    )


@dataclasses.dataclass(frozen=True)
class RunConfig(Part):
    """What pre-training and fine-tuning have in common.

    Attributes:
        steps: the number of steps; in fine-tuning, it follows from `epochs`.
        resume_from: another run from whose state pre-training goes on; empty in fine-tuning.
    """

    seed: int = option(0, "of weights, order of the rows, masks and dropout", maximum=2**32 - 1)
    model: ModelConfig = ModelConfig()
    batch_size: int = option(
        256, "rows of the global batch, over all devices and hosts", minimum=1, maximum=2**20
    )
    accumulate_steps: int = free(
        1,
        "microbatches in which the gradient is computed, to save memory; the result is that of the "
        "whole batch. 0: the fewest that fit into the memory of the devices, found at the start of the run, "
        "which compiles a few programs",
        maximum=2**20,
    )
    steps: int = 0
    optimizer: OptimizerConfig = OptimizerConfig()
    adapter: AdapterConfig = AdapterConfig()
    distillation: DistillationConfig = DistillationConfig()
    mesh: MeshConfig = MeshConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()
    eval: EvalConfig = EvalConfig()
    trackers: str = free(
        "",
        "`wandb`: log to Weights & Biases too ([hosts.md](hosts.md#trackers))",
    )
    log_every: int = free(100, "steps between two lines of metrics", minimum=1)
    resume_from: str = ""
    init_from: str = option(
        "",
        "checkpoint whose weights and architecture the run starts with: a work directory or one of its "
        "`checkpoints/STEP`, a Hugging Face folder, a name on its hub, or a TF1 prefix. The dropout "
        "rates, and the fields of `model.*` that say how the model is computed (`dtype`, `attention`, "
        "`remat`, `scan_unroll`), are those of the config. So is any other field of `model.*` that is set "
        "on the command line, and in fine-tuning one that the config file sets to another value than the "
        "default. "
        "A size that is set and differs from the checkpoint's is an error",
    )
    init_ignore: str = option(
        "",
        "regular expression: parameters that `init_from` may lack, or have beyond this model; any other "
        "stops the run",
        type="regex",
    )
    max_skipped_steps: int = free(
        20,
        "number of consecutive skipped steps at which the run ends with an error. A step is skipped if its "
        "loss, gradient, new parameters or new optimizer state is not finite",
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
