"""Default run configurations with every field explicit. The files in configs/ start from these."""

from __future__ import annotations

from typing import Any

import ml_collections

from bert_jax.errors import UserError
from bert_jax.models import config as bert_config


def model(size: str, **overrides: Any) -> ml_collections.ConfigDict:
    """Returns the fields of EncoderConfig for a named size.

    `vocab_size` is 0 unless it is overridden, which means that it is taken from the vocabulary.

    Args:
        size: the name of the size, such as "base".
        **overrides: values of fields that differ from those of the size.
    """
    fields = bert_config.named(size, **overrides).to_dict()
    return ml_collections.ConfigDict(fields | {"vocab_size": overrides.get("vocab_size", 0)})


def pretrain(size: str = "base", **overrides: Any) -> ml_collections.ConfigDict:
    """Returns the pre-training configuration of the paper (appendix A.2).

    It has a batch size of 256, 1M steps, Adam with learning rate 1e-4, 10k steps of warm-up and weight decay
    0.01. The arguments are those of `model`.
    """
    c = ml_collections.ConfigDict()
    c.seed = 0
    c.model = model(size, **overrides)
    c.data = ml_collections.ConfigDict(
        dict(dir="", vocab="", train_split="train", eval_split="eval", max_corrupt_rows=100)
    )
    c.batch_size = 256  # rows of the global batch
    c.accumulate_steps = 1  # parts in which the gradient of a batch is computed
    c.steps = 1_000_000
    c.masking = ml_collections.ConfigDict(
        dict(prob=0.15, strategy="token", max_predictions=0)
    )  # 0: prob x length
    c.optimizer = _adamw(learning_rate=1e-4, warmup_steps=10_000)
    c.optimizer.decay_steps = 0  # step at which the rate reaches 0; 0: the end of the run
    c.mesh = ml_collections.ConfigDict(dict(data=-1, fsdp=1, tensor=1))
    c.checkpoint = ml_collections.ConfigDict(
        dict(every=1000, keep=3, keep_every=0)
    )  # keep_every=0: none beyond `keep`
    c.eval = ml_collections.ConfigDict(dict(every=1000, batches=0))  # batches=0: the whole split
    c.log_every = 100
    c.resume_from = ""  # another run from whose full train state this run continues
    c.init_from = ""  # a checkpoint of any format from whose weights this run starts
    c.init_ignore = ""  # regular expression: parameters that only the checkpoint or only the model may have
    c.max_skipped_steps = 20
    c.spikes = ml_collections.ConfigDict(dict(factor=0.0, window=128, metric="loss"))  # factor=0: no rule
    return c


def paper_phase(config: ml_collections.ConfigDict, phase: str) -> ml_collections.ConfigDict:
    """Changes a configuration to a phase of the paper's pre-training, and returns it.

    Args:
        config: the pre-training configuration.
        phase: "phase1" for the first 90% of the steps, or "phase2", which resumes from phase 1, or "". The
            last two leave the configuration unchanged.

    Raises:
        UserError: the phase is unknown.
    """
    if phase not in ("", "phase1", "phase2"):
        raise UserError(f"phase {phase!r}: expected phase1, of 128 tokens, phase2, of 512, or none")
    if phase == "phase1":
        config.optimizer.decay_steps = config.steps
        config.steps = config.steps * 9 // 10
    return config


def finetune(size: str = "base", **overrides: Any) -> ml_collections.ConfigDict:
    """Returns the fine-tuning configuration of the paper (appendix A.3).

    It has 3 epochs, a batch size of 32 and warm-up over 10% of the steps. The arguments are those of `model`.
    """
    c = ml_collections.ConfigDict()
    c.seed = 0
    c.model = model(size, **overrides)
    c.init_from = ""  # a checkpoint of any format
    c.init_ignore = ""  # regular expression: parameters that only the checkpoint or only the model may have
    c.batch_size = 32
    c.accumulate_steps = 1
    c.epochs = 3.0
    c.warmup_fraction = 0.1
    c.optimizer = _adamw(learning_rate=5e-5, warmup_steps=0)
    c.optimizer.layer_decay = 1.0  # the ratio of a layer's learning rate to that of the layer above
    c.mesh = ml_collections.ConfigDict(dict(data=-1, fsdp=1, tensor=1))
    c.checkpoint = ml_collections.ConfigDict(dict(every=1000, keep=1, keep_every=0))
    c.eval = ml_collections.ConfigDict(dict(every=0))  # every=0: once an epoch
    c.task = "classification"
    c.vocab = ""  # needed only without init_from, whose checkpoint has a vocabulary
    c.from_scratch = False  # True: use the architecture and vocabulary of init_from, but not its weights
    c.data_dir = ""  # the folder with the files of tasks that have standard file names
    c.data = ml_collections.ConfigDict(dict(train="", eval=""))
    c.group_by_length = True  # without packing: batches of examples of similar lengths
    c.early_stopping = 0  # evaluations in a row without a better score that end the run; 0: no early stopping
    c.log_every = 20
    c.max_skipped_steps = 20
    c.spikes = ml_collections.ConfigDict(dict(factor=0.0, window=128, metric="loss"))  # factor=0: no rule
    return c


def _adamw(learning_rate: float, warmup_steps: int) -> ml_collections.ConfigDict:
    """Returns the AdamW configuration and the schedule of google-research/bert."""
    return ml_collections.ConfigDict(
        dict(
            name="adamw",
            args="",  # arguments of an optax optimizer in Python syntax, such as b1=0.95, nesterov=True
            schedule="reference",
            learning_rate=learning_rate,
            warmup_steps=warmup_steps,
            weight_decay=0.01,
            no_decay=r"(.*/)?(bias|scale)",  # regular expression: parameters without weight decay
            b1=0.9,
            b2=0.999,
            eps=1e-6,
            clip_norm=1.0,
            rates="",  # REGEX=FACTOR; ...: factors of the learning rates of parameters
            freeze="",  # regular expression: parameters that are not trained
        )
    )
