"""Defines the flags of `bert-jax data`, and the settings in the manifest of records."""

import dataclasses
import hashlib
import json
from collections.abc import Sequence
from typing import Any

from bert_jax import tokenization
from bert_jax.data import google, manifests, packed
from bert_jax.errors import check_flag
from bert_jax.io import progress
from bert_jax.tokenization import templates, wordpiece
from data_pipelines import cleaning, languages, readers, sentences
from data_pipelines.stages import google_text, pairs

# The flags that choose the text of a row without a second segment.
_SINGLE_SEGMENTS = ("full_sentences", "full_rows")
_GOOGLE_ONLY = ("masked_lm_prob", "max_predictions_per_seq", "whole_word_mask")
REQUIRED = dataclasses.MISSING  # the default of a field that has to be given


def flag(default: Any, text: str, **metadata: Any) -> Any:
    """Returns a dataclass field that a command offers as a flag; see `Define.options` of bert_jax."""
    return dataclasses.field(default=default, metadata={"flag": text, **metadata})


@dataclasses.dataclass(frozen=True, kw_only=True)
class CorpusOptions:
    """The options of commands that read a corpus; see `readers.list_inputs`."""

    input: tuple[str, ...] = flag(
        REQUIRED,
        "Text files: a path, a glob or a URL such as gs://bucket/*; tfds:NAME in $TFDS_DATA_DIR; "
        "hf:ORG/NAME, wikipedia or bookcorpus on the Hugging Face hub. Repeatable, or comma-separated.",
        required="'DIR/*', the text to read",
    )
    input_format: str = flag(
        readers.AUTO,
        "Format: auto (by suffix: .txt, .jsonl, .ndjson, .json, .csv, .tsv, .xml), text (one sentence per "
        "line, a blank line after each document), paragraphs (one paragraph per line, likewise), "
        "wikiextractor (<doc> elements), wikipedia_xml (a MediaWiki dump), books (one book per file), jsonl "
        "or csv. Parquet and Arrow are detected. All except text are split into sentences.",
        choices=(readers.AUTO, *readers.FORMATS),
    )
    text_field: str = flag(readers.TEXT_FIELD, "Field of the text in jsonl, csv, Parquet, Arrow and tfds.")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options(CorpusOptions):
    """The options that determine the records; the flags of `bert-jax data`."""

    vocab: str = flag(
        REQUIRED,
        "Vocabulary: vocab.txt, a SentencePiece .model, tokenizer.json of byte-level BPE, or a Hugging Face "
        "folder, whose settings then apply.",
        required="FILE, a vocabulary (`bert-jax vocab` learns one)",
    )
    output: str = flag(
        REQUIRED,
        "Directory for the records. Unfinished records with the same settings are resumed; others are "
        "replaced only with --overwrite.",
        required="DIR, a directory for the records",
    )
    schema: str = flag(
        packed.SCHEMA,
        "packed: several sequences per row, without masks; google: one sequence per row with static masks, "
        "as in google-research/bert.",
        choices=(packed.SCHEMA, google.SCHEMA),
    )
    max_seq_length: int = flag(128, "Maximum tokens per row.")
    short_seq_prob: float = flag(
        0.1, "Fraction of the documents whose sequences have a shorter, random target length."
    )
    dupe_factor: int | None = flag(
        None, "Number of times that each document is used. Default: 1, or 10 with --schema=google."
    )
    nsp: str = flag(
        "next",
        "Second segment: next (the following text or, in over half of the rows, a random one), sop (the "
        "following text, swapped half the time; ALBERT) or none (RoBERTa).",
        choices=pairs.NSP_MODES,
    )
    full_sentences: bool = flag(False, "Fill rows with whole sentences, across documents (--nsp=none).")
    full_rows: bool = flag(
        False, "Fill rows to the last token; sentences are split between rows (--nsp=none)."
    )
    masked_lm_prob: float = flag(0.15, "Fraction of the tokens to predict (--schema=google).")
    max_predictions_per_seq: int = flag(20, "Maximum number of tokens to predict per row (--schema=google).")
    whole_word_mask: bool = flag(False, "Mask whole words (--schema=google).")
    eval_fraction: float | None = flag(
        None, "Fraction of the documents in the split eval. Default: 0.01, or 0 with --schema=google."
    )
    sampling_exponent: float | None = flag(
        None,
        "Exponent for several languages, one per --input: documents are repeated so that a language has a "
        "fraction of rows in proportion to size^exponent; multilingual BERT: 0.7. Default: all inputs are "
        "one corpus.",
    )
    seed: int = flag(12345, "Random seed.")
    num_shards: int = flag(0, "Number of files of the split train. 0: one per 128 MB.")
    lower_case: bool | None = flag(
        None, "Lower-case the text and strip accents. Default: as the vocabulary requires."
    )
    template: str = flag(
        "",
        "Format of rows: bert ([CLS] A [SEP] B [SEP] with two token types), modernbert (with one) or roberta "
        "(<s> A </s></s> B </s>). Default: as in tokenizer.json or the folder, or bert.",
    )
    normalizer: str = flag(
        "",
        "Normalization with a SentencePiece model: bert, albert (also replaces quotation marks and splits "
        "off the comma after a digit) or deberta (by the model alone). Default: the folder's; deberta for a "
        "model without a mask; else bert.",
    )
    clean: str = flag(
        "", "Cleaning steps, comma-separated: unicode, length, language, exact, near. Default: none."
    )
    near_duplicate_threshold: float | None = flag(
        None, "Jaccard similarity of word 5-shingles from which --clean=near drops a document. Default: 0.8."
    )
    language: str | None = flag(None, "Language that --clean=language keeps, such as en.")
    sentence_language: str = flag(
        "",
        "Language for splitting paragraphs into sentences, such as de. Default: --language; with "
        "--sampling_exponent the name of each input; else en.",
    )

    def cleaning_settings(self) -> cleaning.Settings | None:
        """Returns the settings of cleaning, or None for no cleaning."""
        return cleaning.parse(self.clean, {name: getattr(self, name) for name in cleaning.FLAG_STEPS})

    def tokenizer(self) -> tokenization.Tokenizer:
        """Returns the tokenizer of the vocabulary, with the template of the rows."""
        template = templates.NAMED.get(self.template)
        tokenizer = tokenization.load(
            self.vocab,
            lower_case=self.lower_case,
            template=template,
            normalizer=self.normalizer,
            log=progress.log,
        )
        if self.schema == google.SCHEMA and type(tokenizer) is wordpiece.WordPieceTokenizer:
            options = tokenizer.lower_case, tokenizer.strip_accents, tokenizer.template
            tokenizer = google_text.GoogleWordPieceTokenizer(tokenizer.path, *options)
        stated, least = tokenizer.default_template, pairs.shortest(tokenizer.template)
        is_stated = not tokenizer.states_template or template in (None, stated)
        check_flag("template", self.template, is_stated, f"{stated.pair!r}, as in {tokenizer.path}")
        check_flag("max_seq_length", self.max_seq_length, self.max_seq_length >= least, f"at least {least}")
        return tokenizer

    def sentence_languages(
        self, paths: Sequence[str], divided: Sequence[languages.Language] = ()
    ) -> list[str]:
        """Returns the languages whose rules split the text: of each of `divided`, or one for all text."""
        if readers.presplit(paths, self.input_format):
            language, expected = self.sentence_language, f"no value with --input_format={self.input_format}"
            check_flag("sentence_language", language, not language, expected)
            return ["en"] * max(1, len(divided))
        common = next((c for c in (self.sentence_language, self.language) if c in sentences.LANGUAGES), "")
        codes = [languages.rules_of(one.name) for one in divided] or [""]
        return [common or code or "en" for code in codes]

    @property
    def fills_rows(self) -> bool:
        """Whether each row is one sequence of text that continues across documents."""
        return self.full_sentences or self.full_rows

    def check(self) -> None:
        """Raises UserError for an invalid value or combination of values."""
        rules = [
            ("max_seq_length", self.max_seq_length < 1 << 16, "under 65,536"),
            ("template", self.template in ("", *templates.NAMED), f"one of {', '.join(templates.NAMED)}"),
            ("short_seq_prob", 0 <= self.short_seq_prob <= 1, "a probability"),
            ("dupe_factor", self.dupe_factor is None or self.dupe_factor >= 1, "at least 1"),
            ("masked_lm_prob", 0 < self.masked_lm_prob < 1, "over 0 and under 1"),
            ("max_predictions_per_seq", 1 <= self.max_predictions_per_seq <= 1 << 16, "1 to 65,536"),
            ("eval_fraction", 0 <= (self.eval_fraction or 0) <= 0.5, "0 to 0.5"),
            ("num_shards", self.num_shards >= 0, "at least 0"),
            ("sentence_language", self.sentence_language in ("", *sentences.LANGUAGES),
             f"one of {', '.join(sentences.LANGUAGES)}"),
            ("sampling_exponent", self.sampling_exponent is None or 0 < self.sampling_exponent <= 1,
             "over 0, and at most 1"),
            ("output", bool(self.output), "a directory"),
        ]  # fmt: skip
        defaults = {field.name: field.default for field in dataclasses.fields(self)}
        others = _GOOGLE_ONLY if self.schema == packed.SCHEMA else ("nsp", *_SINGLE_SEGMENTS)
        rules += [
            (name, getattr(self, name) == defaults[name], f"no value with --schema={self.schema}")
            for name in others
        ]
        if chosen := [name for name in _SINGLE_SEGMENTS if getattr(self, name)]:
            rules += [
                (chosen[0], len(chosen) == 1, f"no --{chosen[-1]} as well"),
                (chosen[0], self.nsp == "none", "--nsp=none as well"),
                (
                    "short_seq_prob",
                    self.short_seq_prob == Options.short_seq_prob,
                    f"no value with --{chosen[0]}",
                ),
            ]
        for name, valid, expected in rules:
            check_flag(name, getattr(self, name), valid, expected)
        self.cleaning_settings()


# Settings that some records lack, with the value that then applies.
_LATER: dict[str, Any] = {
    "nsp": "next",
    "full_sentences": False,
    "full_rows": False,
    "cleaning": None,
    "sampling_exponent": None,
    "sentence_language": "en",
}


def resolve(
    options: Options,
    tokenizer: tokenization.Tokenizer,
    paths: Sequence[str],
    digests: Sequence[dict[str, Any]],
    divided: Sequence[languages.Language] = (),
) -> dict[str, Any]:
    """Returns the settings that determine the records, as the manifest stores them."""
    length = options.max_seq_length
    if options.schema == packed.SCHEMA:
        dupe_factor, eval_fraction = 1, 0.01
        per_row = packed.default_sequences_per_row(length)
        own: dict[str, Any] = {"full_sentences": options.full_sentences}
        own |= {"full_rows": True} if options.full_rows else {}
    else:  # the defaults of the reference
        dupe_factor, eval_fraction, per_row = 10, 0.0, 1
        own = {name: getattr(options, name) for name in _GOOGLE_ONLY}
    if readers.has_fields(paths, options.input_format):
        own["text_field"] = options.text_field
    if clean := options.cleaning_settings():
        own["cleaning"] = clean.described()
    if divided:
        own["sampling_exponent"] = options.sampling_exponent
    codes = options.sentence_languages(paths, divided)
    if set(codes) != {"en"}:
        names = [one.name for one in divided]
        own["sentence_language"] = codes[0] if len(set(codes)) == 1 else dict(zip(names, codes, strict=True))
    owners = {path: {"language": one.name} for one in divided for path in one.paths}
    return own | {
        "schema": options.schema,
        "version": manifests.VERSIONS[packed.SCHEMA],
        "max_seq_length": length,
        "max_sequences_per_row": 1 if options.fills_rows else per_row,
        "nsp": options.nsp,
        "seed": options.seed,
        "short_seq_prob": 0.0 if options.fills_rows else options.short_seq_prob,
        "dupe_factor": dupe_factor if options.dupe_factor is None else options.dupe_factor,
        "eval_fraction": eval_fraction if options.eval_fraction is None else options.eval_fraction,
        "num_shards": options.num_shards,
        "input_format": options.input_format,
        "vocabulary": tokenizer.settings() | {"file": tokenization.KINDS[tokenizer.kind].file},
        "sources": [
            {"name": name, "bytes": digest["bytes"], "sha256": digest["sha256"]} | owners.get(path, {})
            for name, path, digest in zip(readers.short_names(paths), paths, digests, strict=True)
        ],
    }


def digest(settings: dict[str, Any]) -> str:
    """Returns the SHA-256 of the settings, which identifies records made with them."""
    settings = {name: value for name, value in settings.items() if _LATER.get(name) != value}
    return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()


def difference(settings: dict[str, Any], others: dict[str, Any]) -> str:
    """Returns a description of the settings that differ, or "" if none does."""
    different = [
        (name, value, other)
        for name, value in (_LATER | settings).items()
        if value != (other := others.get(name, _LATER.get(name)))
    ]
    return ", ".join(
        f"another {name}" if isinstance(value, dict | list) else f"{name} {other!r}, not {value!r}"
        for name, value, other in different
    )
