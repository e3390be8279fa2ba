"""Every objective with one small layer, and a batch of the loader for it."""

import dataclasses

import numpy as np
from support.models import SPECIAL, packed_batch, tiny_config, tiny_task

from bert_jax.objectives.baselines import ClassificationAndLM
from bert_jax.objectives.causal_lm import LEFT_TO_RIGHT, CausalLM, CausalThenMasked
from bert_jax.objectives.classification import Classification
from bert_jax.objectives.distillation import Distillation
from bert_jax.objectives.embedding.denoising import DenoisingAutoEncoder
from bert_jax.objectives.embedding.late_interaction import LateInteraction
from bert_jax.objectives.embedding.sentence import SentenceEmbedding
from bert_jax.objectives.multiple_choice import MultipleChoice
from bert_jax.objectives.replaced_tokens import ReplacedTokens
from bert_jax.objectives.spans import Spans
from bert_jax.objectives.tagging import Tagging

ONE_LAYER = dict(num_hidden_layers=1, hidden_dropout_prob=0.1, attention_probs_dropout_prob=0.1)


def config(**fields):
    return tiny_config(**ONE_LAYER, **fields)


def masked(**fields):
    return dataclasses.replace(tiny_task(**ONE_LAYER, **fields), next_sentence_head=False)


def rows(*choices):
    """A batch of texts, as the loader of a fine-tuning makes it: [2, choices] rows, or [2]."""
    shape = (2, *choices)
    lengths = np.full(shape, 8, np.int32)
    return {
        "input_ids": np.full((*shape, 8), 7, np.int32),
        "lengths": lengths,
        "first_lengths": lengths,
        "weights": np.ones(shape, np.float32),
    } | {name: np.zeros(shape, np.int32) for name in ("targets", "texts")}


TAGS = {"tags": np.zeros((2, 8), np.int32)}
SPAN = dict.fromkeys(("starts", "ends"), np.zeros(2, np.int32))


def of_records():
    return packed_batch(rows=2)


# {name: (function of fields of the configuration that makes the objective, function that makes a batch)}
OBJECTIVES = {
    "masked LM": (masked, of_records),
    "left to right": (lambda **fields: CausalLM(config(causal=True, **fields)), of_records),
    "first left to right": (
        lambda **fields: CausalThenMasked(masked(**fields)),
        lambda: of_records() | {LEFT_TO_RIGHT: np.ones(2)},
    ),
    "replaced tokens": (lambda **fields: ReplacedTokens(config(**fields), masked(**fields)), of_records),
    "distillation": (
        lambda **fields: Distillation(masked(**fields), masked(**fields), {"logits": 1.0}),
        of_records,
    ),
    "classification": (lambda **fields: Classification(config(**fields), 3), rows),
    "classification and LM": (lambda **fields: ClassificationAndLM(config(causal=True, **fields), 3), rows),
    "multiple choice": (lambda **fields: MultipleChoice(config(**fields), 3), lambda: rows(3)),
    "tagging": (lambda **fields: Tagging(config(**fields), 3), lambda: rows() | TAGS),
    "tagging of features": (
        lambda **fields: Tagging(config(**fields), 3, layers=(-1,), lstm_layers=1),
        lambda: rows() | TAGS,
    ),
    "spans": (lambda **fields: Spans(config(**fields)), lambda: rows() | SPAN),
    "sentence embedding": (lambda **fields: SentenceEmbedding(config(**fields)), lambda: rows(2)),
    "late interaction": (lambda **fields: LateInteraction(config(**fields), 8, 4), lambda: rows(2)),
    "denoising": (lambda **fields: DenoisingAutoEncoder(config(**fields), SPECIAL), rows),
}
