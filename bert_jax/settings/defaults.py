"""Run configurations with every field explicit; the files under configs/ start from these and change some."""

from __future__ import annotations

from typing import Any

import ml_collections

from bert_jax.errors import UserError
from bert_jax.models import config as bert_config


def model(size: str, **overrides: Any) -> ml_collections.ConfigDict:
    """Every field of EncoderConfig. `vocab_size` is 0: it is taken from the vocabulary unless it is set."""
    fields = bert_config.named(size, **overrides).to_dict()
    return ml_collections.ConfigDict(fields | {"vocab_size": overrides.get("vocab_size", 0)})


def pretrain(size: str = "base", **overrides: Any) -> ml_collections.ConfigDict:
    """Pre-training as in the paper (appendix A.2): batch 256, 1M steps, Adam 1e-4, 10k warm-up, weight decay
    .01.
    """
    c = ml_collections.ConfigDict()
    c.seed = 0
    c.model = model(size, **overrides)
    c.data = ml_collections.ConfigDict(
        dict(dir="", vocab="", train_split="train", eval_split="eval", max_corrupt_rows=100)
    )
    c.batch_size = 256  # rows of the global batch
    c.accumulate_steps = 1  # parts that the batch is computed in
    c.steps = 1_000_000
    c.masking = ml_collections.ConfigDict(
        dict(prob=0.15, strategy="token", max_predictions=0)
    )  # 0: prob x length
    c.optimizer = _adamw(learning_rate=1e-4, warmup_steps=10_000)
    c.optimizer.decay_steps = 0  # where the rate reaches 0, if that is not at the end of the run
    c.mesh = ml_collections.ConfigDict(dict(data=-1, fsdp=1, tensor=1))
    c.checkpoint = ml_collections.ConfigDict(
        dict(every=1000, keep=3, keep_every=0)
    )  # keep_every=0: none beyond `keep`
    c.eval = ml_collections.ConfigDict(dict(every=1000, batches=0))  # batches=0: the whole split
    c.log_every = 100
    c.resume_from = ""  # another run, to go on with its whole state
    c.init_from = ""  # a checkpoint of any kind, to start with its weights
    c.init_ignore = ""  # regular expression: parameters that it may lack, or have beyond the model
    c.max_skipped_steps = 20
    c.spikes = ml_collections.ConfigDict(dict(factor=0.0, window=128, metric="loss"))  # factor=0: no rule
    return c


def paper_phase(config: ml_collections.ConfigDict, phase: str) -> ml_collections.ConfigDict:
    """`config` as the paper's "phase1", 90% of its steps, or "phase2", which goes on from there."""
    if phase not in ("", "phase1", "phase2"):
        raise UserError(f"phase {phase!r}: expected phase1, of 128 tokens, phase2, of 512, or none")
    if phase == "phase1":
        config.optimizer.decay_steps = config.steps
        config.steps = config.steps * 9 // 10
    return config


def finetune(size: str = "base", **overrides: Any) -> ml_collections.ConfigDict:
    """Fine-tuning as in the paper (appendix A.3): 3 epochs, batch 32, warm-up over 10% of the steps."""
    c = ml_collections.ConfigDict()
    c.seed = 0
    c.model = model(size, **overrides)
    c.init_from = ""  # a checkpoint of any kind
    c.init_ignore = ""  # regular expression: parameters that it may lack, or have beyond the model
    c.batch_size = 32
    c.accumulate_steps = 1
    c.epochs = 3.0
    c.warmup_fraction = 0.1
    c.optimizer = _adamw(learning_rate=5e-5, warmup_steps=0)
    c.optimizer.layer_decay = 1.0  # a layer's rate as a part of the next one's
    c.mesh = ml_collections.ConfigDict(dict(data=-1, fsdp=1, tensor=1))
    c.checkpoint = ml_collections.ConfigDict(dict(every=1000, keep=1, keep_every=0))
    c.eval = ml_collections.ConfigDict(dict(every=0))  # every=0: once an epoch
    c.task = "classification"
    c.vocab = ""  # where there is no init_from; otherwise the checkpoint's own
    c.from_scratch = False  # init_from's architecture and vocabulary, but none of its weights
    c.data_dir = ""  # the folder with the files of tasks that know their names
    c.data = ml_collections.ConfigDict(dict(train="", eval=""))
    c.group_by_length = True  # otherwise, batches of similar lengths
    c.early_stopping = 0  # evaluations in a row without a better score; 0: the run goes to its end
    c.log_every = 20
    c.max_skipped_steps = 20
    c.spikes = ml_collections.ConfigDict(dict(factor=0.0, window=128, metric="loss"))  # factor=0: no rule
    return c


def _adamw(learning_rate: float, warmup_steps: int) -> ml_collections.ConfigDict:
    """AdamW and its schedule as google-research/bert has them."""
    return ml_collections.ConfigDict(
        dict(
            name="adamw",
            args="",  # of an optimizer of optax, as Python writes them: b1=0.95, nesterov=True
            schedule="reference",
            learning_rate=learning_rate,
            warmup_steps=warmup_steps,
            weight_decay=0.01,
            no_decay=r"(.*/)?(bias|scale)",  # regular expression: parameters that do not decay
            b1=0.9,
            b2=0.999,
            eps=1e-6,
            clip_norm=1.0,
            rates="",  # REGEX=FACTOR; ...: parameters whose learning rate is multiplied
            freeze="",  # regular expression: parameters that stay as they are
        )
    )
