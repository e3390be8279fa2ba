"""A small objective of each kind, with batches as a loader makes them."""

import dataclasses

import jax
import numpy as np
from support.models import SPECIAL, packed_batch, tiny_config, tiny_task

from bert_jax.models.heads.structures import ReplacedTokensHead
from bert_jax.objectives.causal_lm import LEFT_TO_RIGHT, CausalLM, CausalThenMasked
from bert_jax.objectives.classification import Classification, ClassificationAndLM
from bert_jax.objectives.distillation import Distillation
from bert_jax.objectives.embedding.denoising import DenoisingAutoEncoder
from bert_jax.objectives.embedding.late_interaction import LateInteraction
from bert_jax.objectives.embedding.sentence import SentenceEmbedding
from bert_jax.objectives.masked_lm import MaskedLM
from bert_jax.objectives.multiple_choice import MultipleChoice
from bert_jax.objectives.replaced_tokens import ReplacedTokens, generator_config
from bert_jax.objectives.spans import Spans
from bert_jax.objectives.tagging import Tagging
from bert_jax.parallel import sharding

ROWS, RATE = 16, 0.2
FIELDS = dict(num_hidden_layers=1, hidden_dropout_prob=RATE, attention_probs_dropout_prob=RATE)


def config(**fields):
    return tiny_config(**FIELDS | fields)


def masked():
    return dataclasses.replace(tiny_task(**FIELDS), next_sentence_head=False)


def distillation():
    """A student learns the masks, and a frozen teacher's logits and states."""
    teacher = tiny_task(num_hidden_layers=1)
    params = jax.device_get(sharding.unbox(jax.jit(teacher.init)(jax.random.key(7))))
    factors = {"logits": 5.0, "task": 2.0, "cosine": 1.0}
    return Distillation(tiny_task(**FIELDS), teacher, factors, teacher_params=params)


def replaced_tokens(layers=0, fields=(), **options):
    """ELECTRA's networks, which share embeddings but not projections."""
    own, plain = config(embedding_size=24, num_attention_heads=2, **dict(fields)), tiny_task()
    generator = generator_config(own, 16, layers)
    masked = MaskedLM(generator, plain.vocabulary, plain.masking, next_sentence_head=False)
    return ReplacedTokens(own, masked, **options)


def deberta():
    """DeBERTa v3's, whose generator has other layers and the mask decoder."""
    fields = dict(position="disentangled", projection_placement="before_norm", type_vocab_size=0)
    return replaced_tokens(2, fields, sharing="gdes", head=ReplacedTokensHead(adds_first=True))


def records(seed):
    return packed_batch(rows=ROWS, seed=seed)


def texts(seed):
    batch = records(seed)
    rows = {name: batch[name] for name in ("input_ids", "lengths", "row_ids")}
    targets = np.random.default_rng(seed).integers(0, 3, ROWS).astype(np.int32)
    weights = (np.arange(ROWS) < ROWS - 3).astype(np.float32)
    return rows | {"first_lengths": batch["first_lengths"][:, 0], "targets": targets, "weights": weights}


def triples(seed):
    """Groups of an anchor, a positive and a negative, of which two groups have the same anchor."""
    rng = np.random.default_rng(seed)
    batch = packed_batch(rows=3 * ROWS, seed=seed)
    rows = {name: batch[name] for name in ("input_ids", "lengths", "row_ids")}
    rows |= {"first_lengths": batch["lengths"], "weights": np.float32(np.arange(3 * ROWS) < 3 * (ROWS - 3))}
    rows = {name: x.reshape(ROWS, 3, *x.shape[1:]) for name, x in rows.items()}
    rows["texts"] = np.arange(3 * ROWS, dtype=np.int32).reshape(ROWS, 3)
    rows["texts"][5, 0] = rows["texts"][2, 0]
    return rows | {"targets": np.repeat(rng.integers(0, 3, (ROWS, 1)).astype(np.int32), 3, axis=1)}


def several_texts(seed):
    """Packed rows, as the loader of a fine-tuning makes them."""
    batch = records(seed)
    names = ("input_ids", "lengths", "starts", "first_lengths")
    return {name: batch[name] for name in names} | {"weights": np.float32(batch["first_lengths"] > 0)}


def words(seed):
    return texts(seed) | {"tags": np.zeros((ROWS, 32), np.int32)}


def answers(seed):
    return texts(seed) | dict.fromkeys(("starts", "ends"), np.zeros(ROWS, np.int32))


def marked(seed):
    return records(seed) | {LEFT_TO_RIGHT: np.ones(ROWS)}


# {name: (function that makes the objective, function (seed) that makes a batch)}
OBJECTIVES = {
    "masked LM": (masked, records),
    "left to right": (lambda: CausalLM(config(causal=True)), records),
    "first left to right": (lambda: CausalThenMasked(masked()), marked),
    "replaced tokens": (replaced_tokens, records),
    "replaced tokens of DeBERTa": (deberta, records),
    "distillation": (distillation, records),
    "classification": (lambda: Classification(config(), 3), texts),
    "classification and LM": (lambda: ClassificationAndLM(config(causal=True), 3), texts),
    "multiple choice": (lambda: MultipleChoice(config(), 3), triples),
    "tagging": (lambda: Tagging(config(), 3), words),
    "tagging of features": (lambda: Tagging(config(), 3, layers=(-1,), lstm_layers=1), words),
    "spans": (lambda: Spans(config()), answers),
    "contrastive": (lambda: SentenceEmbedding(config(), group=3, symmetric=True, sizes=(8,)), triples),
    "classes of pairs": (lambda: SentenceEmbedding(config(), "classes", group=3, num_labels=3), triples),
    "late interaction": (lambda: LateInteraction(config(), 8, 16, group=3, skipped=(7, 8, 9)), triples),
    "denoising": (lambda: DenoisingAutoEncoder(config(), SPECIAL), texts),
    "denoising, packed": (lambda: DenoisingAutoEncoder(config(), SPECIAL), several_texts),
}
