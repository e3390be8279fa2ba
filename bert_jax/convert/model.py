"""Defines a complete model in memory, which every format can read and write."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np

from bert_jax.convert import families
from bert_jax.convert.families import Family
from bert_jax.convert.heads import PRETRAINED
from bert_jax.convert.param_mapping import FileParams
from bert_jax.convert.sentences import PairScores, SentenceVectors
from bert_jax.errors import UserError
from bert_jax.io.wording import counted, some
from bert_jax.models import assembled
from bert_jax.models.assembled import AssembledModel
from bert_jax.models.config import EncoderConfig
from bert_jax.objectives.adapters import assemble, low_rank_name, low_rank_updates
from bert_jax.objectives.replaced_tokens import GENERATOR, PROJECTION
from bert_jax.tokenization import Tokenizer


class Update(NamedTuple):
    """The update scale * a b of one kernel, float32; shapes as in `adapters.add_low_rank`."""

    a: np.ndarray
    b: np.ndarray
    scale: float


@dataclasses.dataclass(frozen=True)
class LowRankAdapter:
    """The trained parameters of a run with low-rank updates (LoRA)."""

    base: str  # the checkpoint that the updates belong to
    updates: Mapping[str, Update]  # by the name of the kernel
    params: Mapping[str, np.ndarray]  # trained as a whole, such as the head's

    @classmethod
    def from_stored(cls, base: str, trained: Mapping[str, np.ndarray], frozen: Mapping[str, np.ndarray]):
        """Returns the adapter of the stored parameters of a run; None if it has no low-rank updates."""
        stored = {**frozen, **trained}
        updates = {
            name: Update(stored[names["a"]], stored[names["b"]], float(stored[names["scale"]]))
            for name, names in low_rank_updates(stored).items()
        }
        whole = {name: x for name, x in trained.items() if not low_rank_updates([name])}
        return cls(base, updates, whole) if updates else None

    def merged(self, params: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Returns the parameters of a base model with the updates added and `self.params` inserted."""
        stored = {**params, **self.params}
        for name, update in self.updates.items():
            factors = zip(("a", "b", "scale"), update, strict=True)
            stored |= {low_rank_name(name, factor): np.asarray(x, np.float32) for factor, x in factors}
        return assemble(stored)


@dataclasses.dataclass(frozen=True)
class Model:
    """A complete model in memory: architecture, parameters and vocabulary."""

    config: EncoderConfig  # fields that only affect how it is computed (dtype, attention, ...) are ignored
    # Arrays by flat names as in a checkpoint (`encoder/embeddings/word_embeddings`), float32 unless they were
    # cast. The parameters of all layers are stacked along a leading axis [layers, ...].
    params: Mapping[str, np.ndarray]
    head: str = "none"  # a key of `HEADS`
    tokenizer: Tokenizer | None = None  # None if the source has no vocabulary
    labels: tuple[str, ...] | None = None  # the class names in the order of the logits
    source: str = ""  # where the model was read from, for messages and the model card
    # The output of a sequence classifier, in transformers' terms: "single_label_classification",
    # "multi_label_classification" or "regression"; "" if it is unknown, and for other heads.
    problem_type: str = ""
    adapter: LowRankAdapter | None = None  # the trained part, if it has low-rank updates; in `params`, too
    # The second network of a checkpoint that holds two, ELECTRA's generator. A Hugging Face folder holds one
    # of them; see `surgery.change_head`.
    generator: Model | None = None
    sentence: SentenceVectors | None = None  # how it turns a text into one vector, if it was trained for that
    scores: PairScores = dataclasses.field(default_factory=PairScores)  # of a sequence classifier
    untied: str = ""  # the tensor because of which a masked LM head was not read; see `Family.tied`

    def __post_init__(self):
        """Raises UserError for a head, parameters or a vocabulary that do not fit the architecture."""
        family, name = self.family, self.source or "the model"
        required = family.required(self.head)
        groups = [x for x in family.allowed(self.head) if x in self.groups or x in required]
        module = family.module(self.config, groups, self.head, self.classes)
        expected = {name: one.shape for name, one in assembled.parameters(module).items()}
        missing = [name for name in expected if name not in self.params]
        unexpected = [name for name in self.params if name not in expected]
        misshapen = [
            f"{name} is {list(self.params[name].shape)}, expected {list(expected[name])}"
            for name in expected
            if name in self.params and tuple(self.params[name].shape) != expected[name]
        ]
        wrong = [f"{each} is missing" for each in missing] + [f"{each} is unknown" for each in unexpected]
        if wrong := [*wrong, *misshapen]:
            raise UserError(f"{name} is not a {family.name} with head {self.head}: {some(wrong)}")
        if self.tokenizer is not None and self.tokenizer.vocab_size > self.config.vocab_size:
            raise UserError(
                f"{name} has embeddings of {self.config.vocab_size} tokens, and its vocabulary "
                f"{self.tokenizer.path} has {self.tokenizer.vocab_size}"
            )

    @property
    def family(self) -> Family:
        """The family whose file format can store the model."""
        return families.of(self.config)

    @property
    def groups(self) -> tuple[str, ...]:
        """The parameter groups that the model has, such as "encoder" and "pooler"."""
        return tuple(dict.fromkeys(name.split("/")[0] for name in self.params))

    @property
    def stored(self) -> Mapping[str, np.ndarray]:
        """The parameters as a run stores them, with the generator's except for tables that both share."""
        if self.generator is None:
            return self.params
        pattern, own = re.compile(rf"encoder/embeddings/(?!{PROJECTION}/).*"), dict(self.generator.params)
        tables = {name: own.pop(name) for name in self.generator.params if pattern.fullmatch(name)}
        if any(not np.array_equal(self.params.get(name, ()), x) for name, x in tables.items()):
            own |= tables
        return {**self.params, **{f"{GENERATOR}/{name}": x for name, x in own.items()}}

    @property
    def classes(self) -> int:
        """The number of outputs of the classifier; 0 if the model has none."""
        bias = self.params.get(families.CLASSIFIER)
        return 0 if bias is None else bias.shape[0]

    @property
    def parameter_count(self) -> int:
        """The number of parameters, as scalars."""
        return sum(array.size for array in self.params.values())

    @property
    def size(self) -> str:
        """The size in words, such as "12 layers of 768, 109,482,240 parameters"."""
        layers = counted(self.config.num_hidden_layers, "layer")
        return f"{layers} of {self.config.hidden_size}, {self.parameter_count:,} parameters"

    @property
    def has_masked_lm(self) -> bool:
        """True if the model has a masked LM head, which may have no parameters except the word embeddings."""
        bare = self.head == "masked_lm" and not self.family.masked_lm.has_parameters
        return "mlm" in self.groups or bare

    @property
    def is_sentence_encoder(self) -> bool:
        """True if sentence-transformers can compute the vectors that the model was trained for."""
        return self.head == "none" and self.sentence is not None and not self.sentence.unsupported

    def check_sentence(self) -> None:
        """Raises UserError if files of sentence-transformers describe vectors that are not supported."""
        if self.head in PRETRAINED and self.sentence and self.sentence.unsupported:
            raise UserError(
                f"{self.source}: {self.sentence.unsupported} is not supported; without modules.json, the "
                "encoder is used alone"
            )

    def require_tokenizer(self) -> Tokenizer:
        """Returns the tokenizer. Raises UserError if the model has none."""
        if self.tokenizer is None:
            raise UserError(f"{self.source or 'the model'} has no vocabulary; add vocab.txt to it")
        return self.tokenizer

    @property
    def module(self) -> AssembledModel:
        """The Flax module that computes every part of the model."""
        groups = self.groups if "mlm" in self.groups or not self.has_masked_lm else (*self.groups, "mlm")
        return self.family.module(self.config, groups, self.head, self.classes)

    def replace(self, **changes: Any) -> Model:
        """Returns the model with some fields replaced, without the generator if those change the network."""
        if changes.keys() & {"params", "config"}:
            changes = {"generator": None} | changes
        return dataclasses.replace(self, **changes)


def params_of_head(
    params: Mapping[str, Any], head: str, family: Family, source: str, log: Callable[[str], None]
) -> dict[str, Any]:
    """Returns the parameters without groups that only other heads have, which are logged.

    Files may hold such groups, for example the pooler of XLM-R's pre-training.
    """
    if head not in family.heads:
        return dict(params)
    others = set(family.groups) - set(family.allowed(head))
    left = dict.fromkeys(group for name in params if (group := name.split("/")[0]) in others)
    if left:
        log(f"{source}: {', '.join(left)} dropped, which a {family.name} with head {head} does not have")
    return {name: x for name, x in params.items() if name.split("/")[0] not in left}


def check_file_params(source: str, family: Family, found: FileParams, ignore: str = "") -> None:
    """Raises UserError unless every tensor has the right shape and is known, or its full name ignored."""
    unknown = not_ignored(found.unknown, ignore)
    if wrong := [*(f"it lacks {name}" for name in found.missing), *found.misshapen]:
        raise UserError(f"{source} does not match its configuration: {some(wrong)}")
    if unknown:
        raise UserError(
            f"{source} has {some(unknown)}, unknown in a {family.name}; --ignore (convert) or "
            f"--config.init_ignore (training) skips tensors"
        )


def not_ignored(names: Iterable[str], ignore: str) -> list[str]:
    """Returns the names that the regular expression `ignore` does not match as a whole."""
    try:
        return [name for name in names if not re.fullmatch(ignore, name)]
    except re.error as error:
        raise UserError(f"{ignore!r} is not a valid regular expression ({error})") from error
