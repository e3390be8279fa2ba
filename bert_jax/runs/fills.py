"""Fills of masks in a few sentences at each evaluation of pre-training, which show what the model learns."""

from __future__ import annotations

import bisect
import dataclasses
from collections.abc import Callable, Mapping, Sequence

import jax
import numpy as np

from bert_jax.errors import UserError
from bert_jax.inference import engine, fill_mask, shapes
from bert_jax.inference.engine import Row
from bert_jax.io.wording import counted
from bert_jax.objectives.base import Objective
from bert_jax.objectives.distillation import Distillation
from bert_jax.parallel import sharding
from bert_jax.settings.typed.pretrain_config import PretrainConfig, PretrainEvalConfig
from bert_jax.tasks.rows import outputs
from bert_jax.tokenization import SPECIAL_TOKENS, Tokenizer
from bert_jax.training.evaluators import EvaluationContext, Evaluator
from bert_jax.training.state import TrainState

NAME = "fills"  # of the table, after the name of the evaluator
_TOP = 5  # tokens that are shown for each mask


@dataclasses.dataclass(frozen=True)
class Sentences:
    """Texts with masks.

    Attributes:
        tokenizer: the tokenizer of the model.
        limit: the number of positions of the model.
        texts: the texts whose masks are filled.
        rows: their tokens.
        left_out: the number of texts that are not filled.
    """

    tokenizer: Tokenizer
    limit: int
    texts: Sequence[str] = ()
    rows: Sequence[Row] = ()
    left_out: int = 0

    @classmethod
    def of(cls, config: PretrainConfig, objective: Objective, tokenizer: Tokenizer) -> Sentences:
        """Returns the sentences of a configuration, none if the objective fills no masks.

        A sentence most of whose words are [UNK] is left out, and so is a default one that is too long.

        Args:
            config: the configuration of the run, with its model resolved.
            objective: what the run learns, before anything of it is frozen.
            tokenizer: the tokenizer of the records.

        Raises:
            UserError: a sentence that is given has no mask or more tokens than the model has positions, or
                the model has no masked LM head.
        """
        given, limit = config.eval.sentences, config.model.encoder().max_seq_length
        are_default = given == PretrainEvalConfig().sentences
        found = cls(tokenizer, limit)
        if isinstance(objective, Distillation) and not objective.uses_heads:
            if given and not are_default:
                raise UserError(
                    f"eval.sentences={given}: distillation.losses={config.distillation.losses} trains no "
                    "head that fills masks; leave it out, or add logits=1"
                )
            return found
        if not given or config.objective == "causal_lm":
            return found
        mask = tokenizer.special_tokens["mask"]
        texts = [text.strip().replace(SPECIAL_TOKENS["mask"], mask) for text in given.split(";")]
        texts = list(dict.fromkeys(filter(None, texts)))
        rows = list(engine.text_rows(tokenizer, texts, limit, special=(mask,)))
        known = []
        for text, row in zip(texts, rows, strict=True):
            problem = fill_mask.problem_of(text, row, mask, limit)
            if problem and not are_default:
                raise UserError(f"eval.sentences: {problem}")
            if not problem and 2 * _unknown(row, tokenizer) <= _words(row, tokenizer):
                known.append((text, row))
        return dataclasses.replace(
            found,
            texts=[text for text, _ in known],
            rows=[row for _, row in known],
            left_out=len(texts) - len(known),
        )

    def describe(self, log: Callable[[str], None]) -> None:
        """Logs how many sentences are left out, if any are."""
        if self.left_out:
            total = self.left_out + len(self.texts)
            verb, their, have = (
                ("is", "its", "it has") if self.left_out == 1 else ("are", "their", "they have")
            )
            log(
                f"{self.left_out} of {counted(total, 'sentence')} in eval.sentences {verb} not filled: the "
                f"vocabulary lacks most of {their} words, or {have} more than {self.limit} tokens"
            )

    def batch(self, size: int) -> dict[str, np.ndarray]:
        """Returns the rows as a batch of `size` rows, in the form of the loader; see `MaskedLM.predict`."""
        lengths = shapes.padded_lengths(self.limit)
        longest = max(len(row.token_ids) for row in self.rows)
        length = lengths[bisect.bisect_left(lengths, longest)]
        batch = engine.padded(self.rows, self.tokenizer.pad_id, size, length)
        return batch | {
            "starts": np.zeros((size, 1), np.int32),
            "first_lengths": batch["lengths"][:, None],
            "masked_positions": fill_mask.mask_positions(self.rows, self.tokenizer.mask_id, size),
        }

    def table(self, probabilities: np.ndarray) -> tuple[list[str], list[list[str]]]:
        """Returns the columns and the rows of a table: each mask with its most likely tokens.

        Args:
            probabilities: float32 [sentences, P, V].
        """
        lines = []
        for text, row, found in zip(self.texts, self.rows, probabilities, strict=True):
            masks = len(fill_mask.masks_of(row, self.tokenizer.mask_id))
            for number in range(masks):
                candidates = fill_mask.most_likely(self.tokenizer, found[number], _TOP)
                which = f" (mask {number + 1})" if masks > 1 else ""
                cells = [f"{each.token} {each.probability:.1%}" for each in candidates]
                lines.append([text + which, *cells, *[""] * (_TOP - len(cells))])
        return ["sentence", *(str(place) for place in range(1, _TOP + 1))], lines


def _unknown(row: Row, tokenizer: Tokenizer) -> int:
    return int(np.count_nonzero(row.token_ids == tokenizer.unk_id))


def _words(row: Row, tokenizer: Tokenizer) -> int:
    """Returns the number of tokens that are words or pieces of words."""
    others = [tokenizer.special_ids[role] for role in SPECIAL_TOKENS if role != "unk"]
    return int(np.count_nonzero(~np.isin(row.token_ids, others)))


class FillsMasks(Evaluator):
    """Wraps an evaluator, and writes a table of the fills of masks after each evaluation.

    Args:
        evaluator: the evaluator, whose metrics are returned.
        objective: the training objective, which predicts as `MaskedLM.predict` does.
        sentences: at least one sentence.
        mesh: the device mesh that holds the train state.
    """

    def __init__(
        self, evaluator: Evaluator, objective: Objective, sentences: Sentences, mesh: jax.sharding.Mesh
    ):
        self.name, self.every = evaluator.name, evaluator.every
        self._evaluator, self._sentences, self._mesh = evaluator, sentences, mesh
        self._predict = outputs.make_predict(objective, mesh, rows=len(sentences.rows))
        self._compiled: set[tuple] = set()  # for `EvaluationContext.dispatch`

    def evaluate(self, step: int, state: TrainState, context: EvaluationContext) -> Mapping[str, float]:
        """Returns the metrics of the wrapped evaluator. Every process takes part in the computation."""
        metrics = self._evaluator.evaluate(step, state, context)
        with context.watchdog.paused():
            found = jax.device_get(self._probabilities(state, context))
        context.writer.write_table(step, f"{self.name}/{NAME}", *self._sentences.table(found))
        return metrics

    def _probabilities(self, state: TrainState, context: EvaluationContext) -> jax.Array:
        parts = self._mesh.shape["data"] * self._mesh.shape["fsdp"]
        size = -(-len(self._sentences.rows) // parts) * parts
        own = sharding.local_rows(self._mesh, size)
        local = {name: x[own] for name, x in self._sentences.batch(size).items()}
        batch = sharding.global_batch(local, self._mesh)
        return context.dispatch(self._predict, state.params, batch, state.frozen, compiled=self._compiled)

    def is_done(self, step: int) -> bool:
        """Returns whether the wrapped evaluator is done."""
        return self._evaluator.is_done(step)

    def should_stop(self, step: int) -> bool:
        """Returns whether the wrapped evaluator stops the run."""
        return self._evaluator.should_stop(step)
