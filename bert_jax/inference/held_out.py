"""Losses of pre-trained models on held-out records, with the same masks for every model."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from bert_jax import convert
from bert_jax.checkpoint.leaves import nest
from bert_jax.data import cache, google, manifests, records
from bert_jax.data.rows import Dataset
from bert_jax.errors import UserError
from bert_jax.inference.engine import with_masked_lm
from bert_jax.io import comma_lists, files, progress
from bert_jax.kernels import check as kernel_check
from bert_jax.kernels import platform
from bert_jax.models import assembled
from bert_jax.models.config import EncoderConfig
from bert_jax.objectives.causal_lm import CausalLM
from bert_jax.objectives.masked_lm import MaskedLM
from bert_jax.objectives.masking import MaskingOptions, Vocabulary
from bert_jax.parallel import microbatches, placement, sharding
from bert_jax.settings.pretrain_config import MaskingConfig
from bert_jax.training.step import losses_in_microbatches

_BATCH_ROWS = 32
_MASKING = MaskingConfig()  # 15% of the tokens


def held_out(
    checkpoint: files.PathLike,
    records_dir: str,
    *,
    split: str = "eval",
    replace: str = _MASKING.replace,
    rows: int = 0,
    dtype: str = "auto",
    log: Callable[[str], None] = print,
    on_batch: Callable[[int, int], None] = progress.not_shown,
) -> dict[str, float]:
    """Returns the losses and accuracies of a pre-trained model on the first `rows` (0: all) of records.

    The masks of a row, 15% of its tokens, depend only on its number and `replace`, the fractions that become
    [MASK], become a random token, and stay the same: all models with one vocabulary predict the same tokens.
    A causal model predicts every token except the first of each sequence. Of ELECTRA, the generator is
    evaluated.

    Returns:
        `rows` and `predicted_tokens`, two counts; `mlm_loss`, in nats per token, and `mlm_accuracy`, or
        `clm_loss` and `clm_accuracy`; `unigram`, the loss of predicting these tokens from their frequencies
        in the split `train`, if there is one. If the model has a next-sentence head and the records have
        labels, `pairs`, their number; `nsp_loss`, `nsp_accuracy`, and `nsp_majority`, the fraction of the
        more frequent label.
    """
    masks = dataclasses.replace(_MASKING, replace=replace)
    data_dir = cache.localize(records_dir, log)
    paths = comma_lists.paths(data_dir)
    read = [(path, manifests.read(path)) for path in paths if not records.foreign_files(path)]
    if read and len(read) == len(paths):
        manifests.check_alike(read, split)
    model = with_masked_lm(convert.load(checkpoint, log=log))
    mesh = sharding.make_mesh()
    config = placement.config_for(model.config.for_inference(platform.target(), dtype), mesh)
    if config.causal and masks != _MASKING:
        raise UserError(f"replace={replace} has no effect with the causal model {model.source}")
    log(f"evaluating {model.source}")
    kernel_check.ensure(config, log)
    dataset = _open(data_dir, split, model)
    what = _predicted(model, config, masks.options(dataset.max_seq_length))
    count = min(rows or len(dataset), len(dataset))
    pairs, labels = _totals(what, model, dataset, count, mesh, on_batch)
    means = {name: float(total / weight) for name, (total, weight) in pairs.items() if weight}
    scores: dict[str, float] = {"rows": count, "predicted_tokens": int(labels.sum())}
    scores |= {name: means[name] for name in (f"{what.loss}_loss", f"{what.loss}_accuracy")}
    if dataset.manifest["splits"].get("train", {"rows": 0})["rows"]:
        training = records.count_tokens(_open(data_dir, "train", model), len(labels))
        training[list(what.never_predicted)] = 0
        scores["unigram"] = records.unigram_loss(labels, training)
    if "nsp_loss" in means:
        scores["pairs"] = int(pairs["nsp_loss"][1])
        scores |= {name: means[name] for name in ("nsp_loss", "nsp_accuracy")}
        scores["nsp_majority"] = max(means["nsp_positive"], 1 - means["nsp_positive"])
    elif not config.causal:
        reason = "the records have no labels" if what.next_sentence else "the model has no head for it"
        log(f"no next-sentence loss: {reason}")
    return scores


class _Predicted(NamedTuple):
    objective: MaskedLM | CausalLM
    loss: str  # the name of the loss of tokens
    labels: str  # the beginning of the names of the labels and their weights in a prepared batch
    never_predicted: tuple[int, ...]  # the ids of tokens that are never labels
    next_sentence: bool = False


def _predicted(model: convert.Model, config: EncoderConfig, masking: MaskingOptions) -> _Predicted:
    tokenizer, head = model.require_tokenizer(), model.family.masked_lm
    if config.causal:
        causal, never = CausalLM(config, tokenizer.layout.types, head), tokenizer.layout.before.tolist()
        return _Predicted(causal, "clm", "next", (tokenizer.pad_id, *never))
    vocabulary, next_sentence = Vocabulary.from_tokenizer(tokenizer), "nsp" in model.groups
    masked = MaskedLM(
        config,
        vocabulary,
        masking,
        token_types=tokenizer.layout.types,
        head=head,
        next_sentence_head=next_sentence,
    )
    never_chosen = vocabulary.never_chosen(masking.never_chosen)
    return _Predicted(masked, "mlm", "masked", never_chosen, next_sentence)


def _open(data_dir: str, split: str, model: convert.Model) -> Dataset:
    tokenizer = model.require_tokenizer()
    # Records made by other programs contain no vocabulary.
    foreign = any(map(records.foreign_files, comma_lists.paths(data_dir)))
    dataset = records.open_dataset(data_dir, split, tokenizer.path if foreign else "")
    theirs = records.tokenizer_of(dataset)
    records.check_vocabulary("checkpoint", model.source, tokenizer, theirs)
    if dataset.max_seq_length > model.config.max_seq_length:
        limit = f"the {model.config.max_seq_length} positions of {model.source}"
        raise UserError(f"{data_dir}: the rows have {dataset.max_seq_length} tokens, more than {limit}")
    return dataset


def _totals(
    what: _Predicted,
    model: convert.Model,
    dataset: Dataset,
    count: int,
    mesh: jax.sharding.Mesh,
    on_batch: Callable[[int, int], None],
) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Returns {name: float64 (sum, weight)} over the first `count` rows, and the count of each label."""
    size = -(-_BATCH_ROWS // mesh.size) * mesh.size
    groups = ("encoder", "mlm", *(("pooler", "nsp") if what.next_sentence else ()))
    used = {name: x for name, x in model.params.items() if name.split("/")[0] in groups}
    layered = [name for name, x in assembled.parameters(model.module).items() if x.layered]
    params = nest(placement.place(used, layered, mesh, what.objective.config.dtype))
    vocab_size = model.require_tokenizer().vocab_size

    @jax.jit
    def evaluate(params, batch):
        batch = what.objective.prepare(batch, jax.random.key(0, impl="threefry2x32"), False)
        pairs = losses_in_microbatches(
            what.objective, params, batch, microbatches.for_forward_pass(batch, mesh)
        )
        if what.next_sentence:
            weights = batch["next_sentence_weights"]
            pairs["nsp_positive"] = jnp.sum(batch["next_sentence_labels"] * weights), jnp.sum(weights)
        labels, weights = (batch[f"{what.labels}_{name}"] for name in ("labels", "weights"))
        return pairs, jnp.zeros(vocab_size, jnp.float32).at[labels].add(weights)

    def dispatch(batch):
        with sharding.on_mesh(mesh):
            return evaluate(params, sharding.global_batch(batch, mesh))

    starts = range(0, count, size)

    def batches():
        for number, first in enumerate(starts):
            rows = np.arange(first, first + size, dtype=np.int32)
            batch = google.without_masks(dataset.batch(np.where(rows < count, rows, -1)))
            yield number, batch | {"row_ids": rows}

    totals = None
    on_batch(0, len(starts))
    for number, output in microbatches.pipelined(dispatch, batches()):
        sums = jax.tree.map(lambda x: np.asarray(x, np.float64), output)
        totals = sums if totals is None else jax.tree.map(np.add, totals, sums)
        on_batch(number + 1, len(starts))
    assert totals is not None  # a split that can be opened has rows
    return totals
