"""Turn text into records for pre-training: sentences, next-sentence pairs, packed rows.

    bert-jax data --input='wiki/*' --input_format=wikiextractor --vocab=vocab.txt --output_dir=records

The records hold no masks: these are drawn anew at every step. --schema=google makes the records of
google-research/bert's create_pretraining_data, masks included. Records depend on the text, the vocabulary and
the flags, not on --workers. Run the same command again to resume.
"""

from __future__ import annotations

import dataclasses
import os
import sys
import time
from typing import Any

from absl import flags as absl_flags
from etils import epy

from bert_jax.commands import corpus_flags, output_flags
from bert_jax.errors import UserError

with epy.lazy_imports():
    from data_pipelines import build, cleaning, readers, workers


_HIGH_UNKNOWN_SHARE = 0.05
_HIGH_UNDECODABLE_SHARE = 0.001  # bytes per token; text from the web always has some undecodable bytes


def define_flags(flag_values: absl_flags.FlagValues) -> None:
    def define(kind, name: str, default, text: str, *args) -> None:
        kind(name, default, *args, text, flag_values=flag_values)

    corpus_flags.define(flag_values)
    define(absl_flags.DEFINE_string, "vocab", None, "The vocabulary: vocab.txt, or a SentencePiece .model.")
    define(
        absl_flags.DEFINE_string,
        "output_dir",
        None,
        "Where the records go. Where there are records of the same settings, nothing is done, and unfinished "
        "ones are finished; others are replaced by --overwrite alone.",
    )
    output_flags.define_overwrite(flag_values)
    define(
        absl_flags.DEFINE_enum,
        "schema",
        "packed",
        "packed: several unmasked sequences a row; google: one with its masks, as google-research/bert.",
        ["packed", "google"],
    )
    define(absl_flags.DEFINE_integer, "max_seq_length", 128, "The most tokens of a row.")
    define(
        absl_flags.DEFINE_integer,
        "max_sequences_per_row",
        0,
        "The most sequences packed into a row; 0: 8, or 16 from a length of 256 on.",
    )
    define(
        absl_flags.DEFINE_float,
        "short_seq_prob",
        0.1,
        "Share of documents with a shorter length, drawn at random.",
    )
    define(
        absl_flags.DEFINE_integer,
        "dupe_factor",
        None,
        "Times that each document is made into pairs, each anew. Default: 1; google, for other masks: 10.",
    )
    define(
        absl_flags.DEFINE_enum,
        "nsp",
        "next",
        "Second segments: next: what follows or, half the time, a random one; sop: what follows, half the "
        "time swapped with the first (ALBERT); none: there is none (RoBERTa).",
        ["next", "sop", "none"],
    )
    define(
        absl_flags.DEFINE_boolean,
        "full_sentences",
        False,
        "With --nsp=none: rows of whole sentences that go on over the ends of documents.",
    )
    define(absl_flags.DEFINE_float, "masked_lm_prob", 0.15, "google: share of the tokens to predict.")
    define(absl_flags.DEFINE_integer, "max_predictions_per_seq", 20, "google: the most tokens to predict.")
    define(absl_flags.DEFINE_boolean, "whole_word_mask", False, "google: mask all pieces of a word or none.")
    define(
        absl_flags.DEFINE_integer,
        "max_ngram",
        0,
        "google: mask up to so many words in a row, n words with a weight of 1/n; 0: tokens, or words.",
    )
    define(
        absl_flags.DEFINE_float,
        "eval_fraction",
        None,
        "Share of documents in the split eval, the others in train. Default: 0.01; google: 0.",
    )
    define(absl_flags.DEFINE_integer, "seed", 12345, "Of all that is drawn.")
    define(
        absl_flags.DEFINE_integer,
        "num_shards",
        0,
        "Files that the split train is written to; 0: one for each 128 MB.",
    )
    define(absl_flags.DEFINE_integer, "workers", 0, "Processes; 0: one for each core.")
    define(
        absl_flags.DEFINE_enum,
        "runner",
        "local",
        "local: processes of this machine; beam: Apache Beam (--beam_args).",
        ["local", "beam"],
    )
    define(absl_flags.DEFINE_string, "beam_args", "", "Arguments of the Beam pipelines, as one string.")
    define(
        absl_flags.DEFINE_boolean,
        "lower_case",
        None,
        "Lower-case the text and strip accents. Default: by the vocabulary.",
    )
    define(
        absl_flags.DEFINE_string,
        "clean",
        "",
        "Cleaning, with commas between: mojibake, unicode, length, language, exact, near. Default: none.",
    )
    for name, default, what in (
        ("min_document_characters", "200", "Shorter documents are dropped"),
        ("max_document_characters", "5,000,000", "Longer documents are dropped"),
        ("min_passage_characters", "3", "Shorter sentences and paragraphs are dropped"),
        ("max_passage_characters", "100,000", "Longer sentences and paragraphs are dropped"),
        ("max_word_characters", "100", "Longer words are taken out"),
    ):
        define(absl_flags.DEFINE_integer, name, None, f"{what} by --clean=length. Default: {default}.")
    define(
        absl_flags.DEFINE_float,
        "near_duplicate_threshold",
        None,
        "Jaccard similarity of word 5-shingles from which --clean=near drops. Default: 0.8.",
    )
    define(absl_flags.DEFINE_string, "language", None, "What --clean=language keeps: a code such as en.")


def run(flags, args: list[str]) -> int:
    needed = {"input": "text to read", "vocab": "a vocabulary", "output_dir": "a directory to write to"}
    corpus_flags.check("data", flags, args, needed)
    names = [field.name for field in dataclasses.fields(build.Options) if field.name != "input"]
    options = build.Options(tuple(flags.input), **{name: flags[name].value for name in names})
    processes = workers.count(flags.workers)
    begun = time.monotonic()
    if flags.beam_args and flags.runner != "beam":
        raise UserError(f"--beam_args={flags.beam_args} is for --runner=beam")
    beam_args = flags.beam_args if flags.runner == "beam" else None
    early: list[str] = []

    def warn(line: str) -> None:
        early.append(line)
        print(f"warning: {line}", file=sys.stderr, flush=True)

    built = build.build(options, processes, beam_args=beam_args, overwrite=flags.overwrite, warn=warn)
    if built.already_done:
        print(f"{flags.output_dir} already holds these records; nothing to do")
        return 0
    for line in summary(built.manifest):
        print(line)
    if "cleaned" in built.manifest:
        for line in cleaning.lines(built.manifest["cleaned"]):
            print(line)
        print(f"  examples: {os.path.join(flags.output_dir, cleaning.REPORT)}")
    for line in warnings(built.manifest, of_format=not early):
        print(f"warning: {line}", file=sys.stderr)
    seconds = time.monotonic() - begun
    where = "Beam's workers" if flags.runner == "beam" else f"{processes} worker{'s' * (processes > 1)}"
    megabytes = sum(source["bytes"] for source in built.manifest["sources"]) / 1e6
    print(
        f"{flags.output_dir}: {seconds:.0f} s, {megabytes / seconds:.2f} MB of text a second on "
        f"{where}, of {built.peak_memory / 1e6:.0f} MB of memory at most"
    )
    return 0


def summary(manifest: dict[str, Any]) -> list[str]:
    """What is in the records, a line for each split and one for the text."""
    lines = []
    for name, split in manifest["splits"].items():
        size = sum(file["bytes"] for file in split["files"])
        lines.append(
            f"{name}: {split['rows']:,} rows of {manifest['max_seq_length']} tokens, "
            f"{split['fill']:.2%} full; {split['sequences']:,} sequences of "
            f"{split['documents']:,} documents, {split['tokens']:,} tokens, "
            f"{_second_segments(manifest, split)}{len(split['files'])} files, {size / 1e6:.1f} MB"
        )
    text = manifest["text"]
    lines.append(
        f"text: {text['documents']:,} documents, {text['sentences']:,} sentences, {text['tokens']:,} tokens, "
        f"{text['unknown_tokens'] / text['tokens']:.3%} [UNK]"
    )
    return lines


def _second_segments(manifest: dict[str, Any], split: dict[str, Any]) -> str:
    names = {"next": "random next; ", "sop": "swapped; "}
    if manifest["nsp"] not in names:
        return ""
    return f"{split['random_next_share']:.1%} {names[manifest['nsp']]}"


def warnings(manifest: dict[str, Any], of_format: bool = True) -> list[str]:
    """What a user should know before training on the records; with `of_format` also whether the text seems to
    be of another format.
    """
    text, found = manifest["text"], []
    unknown = text["unknown_tokens"] / text["tokens"]
    if unknown > _HIGH_UNKNOWN_SHARE:
        found.append(
            f"{unknown:.1%} of the tokens are [UNK]: is the vocabulary of this language, and of this case "
            f"(lower_case={str(manifest['vocabulary']['lower_case']).lower()})?"
        )
    if text["undecodable"] > _HIGH_UNDECODABLE_SHARE * text["tokens"]:
        found.append(
            f"{text['undecodable']:,} bytes of the text are not UTF-8, and the words that they were in are "
            "garbled: convert the files with iconv -f LATIN1 -t UTF-8, or whatever they are in"
        )
    if of_format:
        found += readers.suspicions(text)
    if manifest["eval_fraction"] and "eval" not in manifest["splits"]:
        found.append(
            f"no split eval: of {text['documents']} documents none is held out (from 8 on, two or more)"
        )
    return found
