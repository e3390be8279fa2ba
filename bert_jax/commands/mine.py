r"""Find hard negatives for the training of sentence embeddings: texts that a model takes for the right ones.

    bert-jax mine --checkpoint=runs/search --input=pairs.tsv --text_a=question --text_b=answer \
        --output=hard.jsonl
    bert-jax mine --checkpoint=runs/search --input=pairs.tsv --text_a=question --text_b=answer \
        --corpus=docs.txt --rerank=runs/reranker --margin=0.2 --output=hard.jsonl

For each text_a, the texts nearest to it are searched among all text_b, and those of --corpus. Left out are
its own text_b and those of equal text_a, and texts that are too likely to be right as well: of a cosine above
--share of that of text_b, or with --rerank of a score by that model that is not smaller by --margin. The
output has text_a, text_b and a list `negatives`, for --config.data.negatives=negatives of finetune/embedding;
a .tsv has them in columns negative1, negative2 and so on. Rows with fewer negatives than --negatives are left
out, and counted.
"""

from __future__ import annotations

import time

from absl import flags as absl_flags
from etils import epy

from bert_jax.commands.flags import models
from bert_jax.errors import UserError
from bert_jax.io import checks, files
from bert_jax.io.progress import log
from bert_jax.io.wording import counted
from bert_jax.settings.flags import Define

with epy.lazy_imports():
    from bert_jax import convert
    from bert_jax.inference import embedding, mining, predictor
    from bert_jax.inference.search import corpus, reranking
    from bert_jax.parallel import compiler_options
    from bert_jax.tasks import table, writers

FORMATS = (".jsonl", ".tsv")


def define_flags(define: Define) -> None:
    """Defines the flags."""
    models.add_pretrained(define)
    define.string(
        "input", "Pairs: TSV, CSV or JSON lines.", required="FILE with pairs: TSV, CSV or JSON lines"
    )
    define.string("text_a", "Column of the first text.", required="COLUMN of the first text")
    define.string("text_b", "Column of the second text.", required="COLUMN of the second text")
    define.string("output", "File to write: .jsonl or .tsv.", required="FILE.jsonl or .tsv")
    define.overwrite()
    define.string("corpus", "Further texts, one per line, or .jsonl with the field `text`.")
    define.integer("negatives", "Number of negatives of each pair.", 4)
    define.integer("skip", "Number of nearest texts to pass over.", 0)
    define.integer("depth", "Number of nearest texts to look at.", 100)
    define.number("share", "Largest cosine of a negative, as a share of that of the pair. Default: 0.95.")
    define.string("rerank", "Work directory of a fine-tuned model of pairs, whose scores are used instead.")
    models.add_relevant(define)
    define.number("margin", "With --rerank: smallest difference of the scores. Default: 0.1.")


def run(flags: absl_flags.FlagValues, args: list[str]) -> int:
    """Runs the command."""
    options = _options(flags)
    checks.check_output_file(flags.output, FORMATS, overwrite=flags.overwrite)
    columns = table.Columns(flags.text_a, flags.text_b)
    examples = table.read_examples(flags.input, columns, parse_label=None, flags="")
    examples.warn(log)
    # A corpus counts its blank lines, too.
    further = [one.text for one in corpus.read(flags.corpus) if one.text.strip()] if flags.corpus else []
    compiler_options.enable_compilation_cache()
    embedder = embedding.Embedder(convert.load(flags.checkpoint, log=log), dtype=flags.dtype, log=log)
    scorer = None
    if flags.rerank:
        ranker = predictor.Predictor(flags.rerank, log=log, dtype=flags.dtype)
        scorer = reranking.Reranker(ranker, relevant=flags.relevant, log=log).scores

    began = time.monotonic()
    candidates = list(dict.fromkeys([*examples.texts_b, *further]))
    places = {text: place for place, text in enumerate(candidates)}
    of_candidates = embedder.unit_vectors(candidates, embedder.sentence.document_prompt)
    of_anchors = embedder.unit_vectors(examples.texts_a, embedder.sentence.query_prompt)
    of_positives = of_candidates[[places[text] for text in examples.texts_b]]
    vectors = of_anchors, of_positives, of_candidates
    found = list(mining.mine(examples.texts_a, examples.texts_b, candidates, vectors, options, scorer))
    kept = [
        (a, b, negatives)
        for a, b, negatives in zip(examples.texts_a, examples.texts_b, found, strict=True)
        if len(negatives) == options.count
    ]
    if not kept:
        raise UserError(
            f"{flags.input}: no pair has {options.count} negatives among {counted(len(candidates), 'text')}; "
            "try fewer --negatives, a larger --depth, or a --corpus"
        )
    _write(flags, kept, options.count)
    missing = len(found) - len(kept)
    print(
        f"wrote {flags.output}: {counted(len(kept), 'pair')} with {counted(options.count, 'negative')} each, "
        f"of {counted(len(candidates), 'text')}; {missing:,} with fewer left out; "
        f"{time.monotonic() - began:.1f} s"
    )
    return 0


def _options(flags: absl_flags.FlagValues) -> mining.Mining:
    for name, least in (("negatives", 1), ("skip", 0), ("depth", 1)):
        if getattr(flags, name) < least:
            raise UserError(f"--{name}={getattr(flags, name)}: expected {least} or more")
    if flags.depth < flags.skip + flags.negatives:
        least = flags.skip + flags.negatives
        raise UserError(f"--depth={flags.depth}: expected at least --skip + --negatives = {least}")
    for name, other in (
        ("share", flags.rerank),
        ("margin", not flags.rerank),
        ("relevant", not flags.rerank),
    ):
        if getattr(flags, name) is not None and other:
            raise UserError(
                f"--{name} is {'not ' if name == 'share' else 'only '}used with --rerank; leave it out"
            )
    given = {name: getattr(flags, name) for name in ("share", "margin") if getattr(flags, name) is not None}
    return mining.Mining(flags.negatives, flags.skip, flags.depth, **given)


def _write(flags: absl_flags.FlagValues, kept: list[tuple[str, str, list[str]]], count: int) -> None:
    names = (flags.text_a, flags.text_b)
    if files.suffix(flags.output) == ".tsv":
        header = [*names, *(f"negative{number}" for number in range(1, count + 1))]
        rows = ([" ".join(text.split()) for text in (a, b, *negatives)] for a, b, negatives in kept)
        writers.write_table(flags.output, header, rows)
        return
    objects = ({names[0]: a, names[1]: b, "negatives": negatives} for a, b, negatives in kept)
    writers.write_json_lines(flags.output, objects)
