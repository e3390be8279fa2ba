"""Turn text into records for pre-training: sentences, next-sentence pairs, packed rows.

    bert-jax data --input='wiki/*' --input_format=wikiextractor --vocab=vocab.txt --output=records

Records have no masks, which are sampled at every training step. --schema=google writes masked records, as
google-research/bert's create_pretraining_data does. Records depend on the text, the vocabulary and the flags,
but not on --workers. Run the same command again to resume.
"""

import sys
import time
from typing import Any

from absl import flags as absl_flags
from etils import epy

from bert_jax.commands import shared
from bert_jax.io import wording
from bert_jax.io.wording import counted
from bert_jax.parallel import host
from bert_jax.settings.flags import Define, read_options

with epy.lazy_imports():
    from bert_jax.data import inspection, manifests
    from data_pipelines import build, cleaning, readers, settings


_LONG_SENTENCE = 75  # tokens on average; a sentence has about 25
_HIGH_UNDECODABLE_SHARE = 0.001  # bytes per token; text from the web always has some undecodable bytes


def define_flags(define: Define) -> None:
    define.options(settings.Options)
    define.overwrite()
    define.integer("workers", "Number of processes. 0: one per core.", 0)
    define.string(
        "beam_args",
        "Run on Apache Beam with these arguments, such as '--runner=DataflowRunner --project=...'.",
        "",
    )


def run(flags: absl_flags.FlagValues, args: list[str]) -> None:
    shared.at_least(flags, workers=0)
    options = read_options(flags, settings.Options)
    processes = flags.workers or max(1, int(host.usable_cores()))
    begun = time.monotonic()
    built = build.build(options, processes, beam_args=flags.beam_args, overwrite=flags.overwrite)
    if built.already_done:
        print(f"{flags.output} already holds these records; nothing to do")
        return
    for line in summary(built.manifest):
        print(line)
    if "cleaned" in built.manifest:
        for line in cleaning.lines(built.manifest["cleaned"]):
            print(line)
        print(f"  examples: {flags.output}/{manifests.FILE}, cleaned")
    for line in warnings(built.manifest):
        print(f"warning: {line}", file=sys.stderr)
    seconds = time.monotonic() - begun
    where = "Beam's workers" if flags.beam_args else counted(processes, "worker")
    megabytes = sum(source["bytes"] for source in built.manifest["sources"]) / 1e6
    rate = wording.rate(megabytes / seconds)
    print(f"{flags.output}: {seconds:.0f} s, {rate} MB of text per second on {where}")


def summary(manifest: dict[str, Any]) -> list[str]:
    """Returns a line about each split of the records, and one about the text."""
    lines = []
    for name, split in manifest["splits"].items():
        size = sum(file["bytes"] for file in split["files"])
        lines.append(
            f"{name}: {counted(split['rows'], 'row')} of {manifest['max_seq_length']} tokens, "
            f"{split['fill']:.2%} full; {counted(split['sequences'], 'sequence')} of "
            f"{counted(split['documents'], 'document')}, {split['tokens']:,} tokens, "
            f"{counted(len(split['files']), 'file')}, {wording.size(size)}"
        )
    for name, of in manifest.get("languages", {}).items():
        written = manifest["splits"]["train"]["languages"][name]
        lines.append(
            f"{name}: {of['share_of_text']:.2%} of the text, used {of['used']:.2f} times, is "
            f"{of['share']:.2%} of train: {counted(written['rows'], 'row')}, {written['tokens']:,} tokens"
        )
    text = manifest["text"]
    lines.append(
        f"text: {counted(text['documents'], 'document')}, {counted(text['sentences'], 'sentence')}, "
        f"{text['tokens']:,} tokens, {text['unknown_tokens'] / text['tokens']:.3%} [UNK]"
    )
    return lines


def warnings(manifest: dict[str, Any]) -> list[str]:
    """Returns warnings about the records."""
    text, found = manifest["text"], []
    if unknown := inspection.many_unknown(text["unknown_tokens"] / text["tokens"]):
        found.append(unknown)
    if text["undecodable"] > _HIGH_UNDECODABLE_SHARE * text["tokens"]:
        found.append(f"{counted(text['undecodable'], 'byte sequence')} of the text are not valid UTF-8")
    found += readers.skipped(text)
    if manifest["input_format"] == "text" and text["tokens"] > _LONG_SENTENCE * text["sentences"]:
        found.append(
            f"a line of the text has {text['tokens'] / text['sentences']:.0f} tokens on average, but "
            "--input_format=text expects one sentence; if lines are paragraphs, set --input_format=paragraphs"
        )
    for name, split in manifest["splits"].items():
        unusual = inspection.unusual_labels(manifest["nsp"], split["random_next_share"], split["sequences"])
        found += [f"{name}: {unusual}"] if unusual else []
    if manifest["eval_fraction"] and "eval" not in manifest["splits"]:
        found.append(f"no split eval: it needs 8 or more documents, but the text has {text['documents']}")
    return found
