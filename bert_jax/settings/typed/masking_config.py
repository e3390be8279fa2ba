"""The fields of a pre-training configuration that define which tokens are predicted, and how."""

from __future__ import annotations

import dataclasses

from bert_jax.objectives.masking import MaskingOptions, default_max_predictions, parse_fractions
from bert_jax.settings.config_fields import Part, amount, fixed, option


@dataclasses.dataclass(frozen=True)
class MaskingConfig(Part):
    """Which tokens are predicted in pre-training, and what replaces them."""

    prob: float = option(0.15, "share of the tokens to predict", above=0, below=1)
    strategy: str = option(
        "token",
        "what is chosen: `token`, `whole_word`, `span` (SpanBERT's spans of up to 10 words), or `ngram` "
        "(ALBERT's, of up to 3 words)",
    )
    max_predictions: int = option(
        0,
        "the most tokens of a row to predict; 0: `prob` of the row, 20 at 128 and 80 at 512; four standard "
        "deviations more with `count=bernoulli`, and 19 and 79 with `count=electra`",
        maximum=2**16,
    )
    count: str = option(
        "google",
        "how many tokens of a row of n tokens, with [CLS] and [SEP], are predicted: `google`, round(`prob` "
        "n) and at least 1; `electra`, the same in float32, at most int((`prob` + 0.005) length of the row); "
        "`fairseq`, floor(`prob` n + U) with a uniform U; `bernoulli`, each token independently, as in "
        "transformers",
    )
    replace: str = option(
        "0.8,0.1,0.1",
        "shares of the chosen tokens that become [MASK], that become a random token, and that stay the same",
    )
    exclude_special: bool = option(
        False,
        "random tokens are drawn from the vocabulary without padding, [CLS], [SEP] and [UNK], as in fairseq",
    )
    never_chosen: str = option(
        "layout",
        "special tokens that are never chosen: `layout`, [CLS] and [SEP], as in google-research/bert; "
        "`special`, also [UNK] and [MASK] where they are in the text, as in transformers; `none`, as in "
        "fairseq",
    )
    smoothing: float = option(
        0.0,
        "with `strategy=token`: a token is chosen with a probability in proportion to (its "
        "count)^-smoothing; DistilBERT: 0.7; 0: all alike",
        minimum=0,
        maximum=100,
    )
    copies: int = option(
        0,
        "sets of masks of a row, of which epoch e has set e mod `copies`: 1, the same masks in every epoch; "
        "10, static masks as those of google-research/bert; 0, new masks at every step",
    )

    def options(self, length: int, part: str = "masking") -> MaskingOptions:
        """Returns the options for rows of up to `length` tokens.

        Args:
            length: the maximum number of tokens in a row.
            part: the part of the configuration, for messages.

        Raises:
            UserError: a value is unknown, out of its range, or contradicts another one.
        """
        fractions = parse_fractions(self.replace, f"{part}.replace")
        values = self.to_dict() | {"replace": fractions, "max_predictions": self.max_predictions or 1}
        options = MaskingOptions(**values, part=part)
        most = self.max_predictions or default_max_predictions(length, self.prob, self.count)
        return dataclasses.replace(options, max_predictions=most)


@dataclasses.dataclass(frozen=True)
class EvalMaskingConfig(Part):
    """The masks of evaluation, where they differ from those of training."""

    prob: float | None = option(
        None, "`masking.prob` in evaluation; None: the same", type="float", above=0, below=1, optional=True
    )
    replace: str = option("", "`masking.replace` in evaluation; empty: the same")
    never_chosen: str = option("", "`masking.never_chosen` in evaluation; empty: the same")

    def options(self, masking: MaskingConfig, length: int) -> MaskingOptions:
        """Returns the options for rows of `length` tokens; fields that are not set are those of `masking`.

        Raises:
            UserError: a value is unknown, out of its range, or contradicts another one.
        """
        given = {name: value for name, value in self.to_dict().items() if value}
        if self.prob:
            given["max_predictions"] = 0
        return dataclasses.replace(masking, copies=0, **given).options(length, "eval_masking")


@dataclasses.dataclass(frozen=True)
class ReplacedTokensConfig(Part):
    """The objective of ELECTRA, for `objective=replaced_tokens` alone."""

    generator_hidden_size: int = fixed(
        0,
        "width H of the generator's layers, with 4 H in the feed-forward block and heads of 64; 0: a quarter "
        "of `model.hidden_size`",
        maximum=2**20,
    )
    weight: float = amount(50.0, "factor of the discriminator's loss beside the generator's")
    temperature: float = option(1.0, "temperature of the generator's samples", above=0, maximum=1000)
