"""Defines the flags of `bert-jax data` that determine the records."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from bert_jax import tokenization
from bert_jax.data import google, packed
from bert_jax.errors import UserError
from bert_jax.io import progress
from bert_jax.io.wording import some
from bert_jax.tokenization import templates
from data_pipelines import cleaning, languages, readers, sentences
from data_pipelines.flags import REQUIRED, CorpusOptions, flag
from data_pipelines.stages import pairs

# The flags that choose the text of a row without a second segment.
_SINGLE_SEGMENTS = ("full_sentences", "doc_sentences", "full_rows")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options(CorpusOptions):
    """The options that determine the records; the flags of `bert-jax data`."""

    vocab: str = flag(
        REQUIRED,
        "The vocabulary: vocab.txt, a SentencePiece .model, the tokenizer.json of a byte-level BPE, or a "
        "Hugging Face folder, whose settings the text then has.",
        required="FILE, a vocabulary (`bert-jax vocab` learns one)",
    )
    output: str = flag(
        REQUIRED,
        "Directory for the records. If it has records with the same settings, nothing is done, or unfinished "
        "ones are finished; other records are replaced only with --overwrite.",
        required="DIR, a directory for the records",
    )
    schema: str = flag(
        packed.SCHEMA,
        "packed: several sequences per row, without masks; google: one sequence per row with its masks, as "
        "in google-research/bert.",
        choices=(packed.SCHEMA, google.SCHEMA),
    )
    max_seq_length: int = flag(128, "Maximum number of tokens in a row.")
    max_sequences_per_row: int = flag(
        0, "Maximum number of sequences packed into a row; 0: 8, or 16 if --max_seq_length is 256 or more."
    )
    short_seq_prob: float = flag(
        0.1, "Fraction of documents whose sequences have a shorter, random target length."
    )
    dupe_factor: int | None = flag(
        None,
        "How many times sequences are drawn from each document. Default: 1; with --schema=google 10, for "
        "different masks.",
    )
    nsp: str = flag(
        "next",
        "Second segment of a sequence. next: the text that follows or, half the time, a random one; sop: the "
        "text that follows, half the time swapped with the first (ALBERT); none: there is none (RoBERTa).",
        choices=pairs.NSP_MODES,
    )
    full_sentences: bool = flag(
        False, "With --nsp=none: fill rows with whole sentences, across the ends of documents."
    )
    doc_sentences: bool = flag(
        False, "With --nsp=none: sequences of whole sentences of one document, none of them made shorter."
    )
    full_rows: bool = flag(
        False,
        "With --nsp=none: fill rows to the last token. A sentence is cut at the end of a row and goes on in "
        "the next one.",
    )
    masked_lm_prob: float = flag(0.15, "google: fraction of the tokens to predict.")
    max_predictions_per_seq: int = flag(20, "google: maximum number of tokens to predict.")
    whole_word_mask: bool = flag(False, "google: mask all pieces of a word or none.")
    max_ngram: int = flag(
        0,
        "google: mask up to this many consecutive words, n words with a weight of 1/n; 0: single tokens, or "
        "single words with --whole_word_mask.",
    )
    eval_fraction: float | None = flag(
        None,
        "Fraction of the documents in the split eval; the others are in train. Default: 0.01; google: 0.",
    )
    sampling_exponent: float | None = flag(
        None,
        "For several languages, one --input each: the share of a language in the rows of train is "
        "proportional to its tokens to the power of this exponent, by repeating documents; 0.7 in "
        "multilingual BERT. Default: all inputs are one corpus.",
    )
    seed: int = flag(12345, "Seed of everything that is random.")
    num_shards: int = flag(0, "Number of files of the split train; 0: one for each 128 MB.")
    lower_case: bool | None = flag(
        None,
        "Lower-case the text and strip accents. Default: as the vocabulary requires, or its folder says.",
    )
    template: str = flag(
        "",
        "The rows of the model's family: [CLS] A [SEP] B [SEP] with two token types (bert) or one "
        "(modernbert), or <s> A </s></s> B </s> (roberta). Default: that of tokenizer.json or of a Hugging "
        "Face folder, and bert for other kinds of vocabularies.",
    )
    normalizer: str = flag(
        "",
        "How text is normalized, with a SentencePiece model: as by BERT (bert) or by ALBERT (albert), which "
        "also replaces quotation marks and splits off the comma after a digit. Default: that of a Hugging "
        "Face folder, else bert.",
    )
    clean: str = flag(
        "",
        "Cleaning steps, separated by commas: mojibake, unicode, length, language, exact, near. Default: "
        "none.",
    )
    min_document_characters: int | None = flag(
        None, "Drop shorter documents, with --clean=length. Default: 200."
    )
    max_document_characters: int | None = flag(
        None, "Drop longer documents, with --clean=length. Default: 5,000,000."
    )
    min_passage_characters: int | None = flag(
        None, "Drop shorter sentences and paragraphs, with --clean=length. Default: 3."
    )
    max_passage_characters: int | None = flag(
        None, "Drop longer sentences and paragraphs, with --clean=length. Default: 100,000."
    )
    max_word_characters: int | None = flag(None, "Remove longer words, with --clean=length. Default: 100.")
    near_duplicate_threshold: float | None = flag(
        None,
        "Jaccard similarity of word 5-shingles from which --clean=near drops a document. Default: 0.8.",
    )
    language: str | None = flag(None, "Language that --clean=language keeps: a code such as en.")
    sentence_language: str = flag(
        "",
        "Language by whose rules paragraphs are split into sentences: a code such as de. Default: that of "
        "--language, or with --sampling_exponent that of the name of each input, where there are rules for "
        "it, else en.",
    )

    def cleaning_settings(self) -> cleaning.Settings | None:
        """Returns how documents are cleaned, or None for no cleaning.

        Raises:
            UserError: as in `cleaning.parse`.
        """
        return cleaning.parse(self.clean, {name: getattr(self, name) for name in cleaning.FLAG_STEPS})

    def tokenizer(self) -> tokenization.Tokenizer:
        """Returns the tokenizer of the vocabulary, with the template of the rows.

        Raises:
            UserError: the vocabulary is not valid, or its file has another template.
        """
        template = templates.NAMED.get(self.template)
        tokenizer = tokenization.load(
            self.vocab,
            lower_case=self.lower_case,
            template=template,
            normalizer=self.normalizer,
            log=progress.log,
        )
        stated = tokenizer.default_template
        if tokenizer.states_template and template not in (None, stated):
            raise UserError(
                f"--template={self.template}: {tokenizer.path} has rows {stated.pair!r}, and these would be "
                f"{tokenizer.template.pair!r}; leave the flag out"
            )
        if self.max_seq_length < (least := pairs.shortest(tokenizer.template)):
            raise UserError(
                f"--max_seq_length={self.max_seq_length}: expected at least {least}, for the special tokens "
                f"of a row, {tokenizer.template.pair!r}, and a token each of A and B"
            )
        return tokenizer

    def sentence_languages(
        self, paths: Sequence[str], divided: Sequence[languages.Language] = ()
    ) -> list[str]:
        """Returns the languages by whose rules the text is split into sentences.

        Args:
            paths: the input files.
            divided: the languages, if they are sampled.

        Returns:
            The code of each language of `divided`, or a single code for all text.

        Raises:
            UserError: the flag is given, and there is nothing to split.
        """
        if readers.presplit(paths, self.input_format):
            if self.sentence_language:
                raise UserError(
                    f"--sentence_language={self.sentence_language}: the lines of --input_format="
                    f"{self.input_format} are sentences, and none is split; leave the flag out, or give "
                    "--input_format=paragraphs"
                )
            return ["en"] * max(1, len(divided))
        named = [languages.rules_of(one.name) for one in divided] or [""]
        return [self._rules_for_all or code or "en" for code in named]

    def rules_warning(self, paths: Sequence[str], divided: Sequence[languages.Language]) -> str:
        """Returns a warning if English rules of sentences stand in for those of sampled languages, or "".

        Args:
            paths: the input files.
            divided: the languages, if they are sampled.
        """
        without = [one.name for one in divided if not languages.rules_of(one.name)]
        if not without or self._rules_for_all or readers.presplit(paths, self.input_format):
            return ""
        return (
            f"warning: English rules split the text of {some(without)} into sentences, since no language "
            "with rules is in the name: if there is one, give --sentence_language, or name the files or the "
            "folder of that --input by its code, such as de"
        )

    @property
    def _rules_for_all(self) -> str:
        """The language by whose rules all text is split; "" if no flag names one that has rules."""
        known = (code for code in (self.sentence_language, self.language) if code in sentences.LANGUAGES)
        return next(known, "")

    @property
    def fills_rows(self) -> bool:
        """Returns whether each row is one sequence, of text that goes on over the ends of documents."""
        return self.full_sentences or self.full_rows

    def check(self) -> None:
        """Raises UserError for an invalid value or combination of values."""
        rules = [
            ("text_field", bool(self.text_field), "the name of a field"),
            ("schema", self.schema in (packed.SCHEMA, google.SCHEMA), "packed or google"),
            ("nsp", self.nsp in pairs.NSP_MODES, f"one of {', '.join(pairs.NSP_MODES)}"),
            ("max_seq_length", self.max_seq_length < 1 << 16, "under 65,536"),
            (
                "max_sequences_per_row",
                0 <= self.max_sequences_per_row <= 1 << 16,
                "1 to 65,536, or 0 to choose by the length",
            ),
            ("template", self.template in ("", *templates.NAMED), f"one of {', '.join(templates.NAMED)}"),
            ("short_seq_prob", 0 <= self.short_seq_prob <= 1, "a probability"),
            ("dupe_factor", self.dupe_factor is None or self.dupe_factor >= 1, "at least 1"),
            ("masked_lm_prob", 0 < self.masked_lm_prob < 1, "over 0 and under 1"),
            ("max_predictions_per_seq", 1 <= self.max_predictions_per_seq <= 1 << 16, "1 to 65,536"),
            ("seed", -(1 << 63) <= self.seed < 1 << 63, "a number of 64 bits"),
            ("max_ngram", self.max_ngram >= 0, "at least 1 word, or 0 for no n-grams"),
            ("eval_fraction", 0 <= (self.eval_fraction or 0) <= 0.5, "0 (hold nothing out) to 0.5"),
            ("num_shards", self.num_shards >= 0, "at least 1, or 0 to choose by the size"),
            (
                "sentence_language",
                self.sentence_language in ("", *sentences.LANGUAGES),
                f"one of {', '.join(sentences.LANGUAGES)}, or a related one of them",
            ),
        ]
        for name, sound, expected in rules:
            if not sound:
                raise UserError(f"--{name}={getattr(self, name)}: expected {expected}")
        languages.check_exponent(self.sampling_exponent)
        self._check_schema()
        self._check_single_segments()
        self.cleaning_settings()
        if not self.output:
            raise UserError("--output is missing: where should the records go?")

    def _check_single_segments(self) -> None:
        """Raises UserError for a flag that contradicts the one that chooses the text of a row."""
        given = [name for name in _SINGLE_SEGMENTS if getattr(self, name)]
        if not given:
            return
        if len(given) > 1:
            raise UserError(f"--{given[0]} --{given[1]}: expected at most one of the two")
        if self.nsp != "none":
            raise UserError(
                f"--{given[0]} with --nsp={self.nsp}: such rows have no second segment; give --nsp=none too"
            )
        if self.short_seq_prob != Options.short_seq_prob:
            raise UserError(
                f"--{given[0]} with --short_seq_prob={self.short_seq_prob:g}: such rows are never shortened; "
                "leave one of the two out"
            )
        if self.fills_rows and self.max_sequences_per_row > 1:
            raise UserError(
                f"--{given[0]} with --max_sequences_per_row={self.max_sequences_per_row}: such a row is one "
                "sequence; leave one of the two out"
            )

    def _check_schema(self) -> None:
        """Raises UserError for a flag that does not apply to the schema."""
        if self.schema == packed.SCHEMA:
            others = ("masked_lm_prob", "max_predictions_per_seq", "whole_word_mask", "max_ngram")
            remedy = (
                "whose masks are drawn in training: set masking.* of the run's config, or --schema=google"
            )
        else:
            others = ("nsp", *_SINGLE_SEGMENTS, "max_sequences_per_row")
            remedy = "which has a next-sentence pair in each row: use --schema=packed"
        defaults = {field.name: field.default for field in dataclasses.fields(self)}
        for name in others:
            if getattr(self, name) != defaults[name]:
                value = str(getattr(self, name)).lower()
                raise UserError(f"--{name}={value} is not for --schema={self.schema}, {remedy}")
