r"""Score a fine-tuned model on labeled data, or any model on records, minimal pairs, similarity or retrieval.

    bert-jax evaluate --workdir=runs/mrpc
    bert-jax evaluate --workdir=runs/reviews --input=test.csv --output=predictions.tsv
    bert-jax evaluate --workdir=runs/cola,runs/mrpc,runs/rte
    bert-jax evaluate --model=org/name --input=test.csv --text=review --label=stars
    bert-jax evaluate --model=runs/mini --records=records
    bert-jax evaluate --model=runs/mini --minimal_pairs --output=scores.jsonl
    bert-jax evaluate --model=sentence-transformers/all-MiniLM-L6-v2 --similarity=glue/STS-B/dev.tsv
    bert-jax evaluate --model=sentence-transformers/all-MiniLM-L6-v2 --retrieval=beir/scifact \
        --rerank=runs/reranker

A fine-tuned model gets the metrics of its task. --records gives losses and accuracies of masked LM and next
sentence prediction (next token, for a causal model) on the split `eval`, with masks that do not depend on the
model. --minimal_pairs gives the fraction of pairs in which the grammatical sentence is more likely, on pairs
of bert-jax or of --input.

The vectors of `bert-jax embed` are scored by the correlation of cosines with human scores (--similarity), or
by retrieval (--retrieval, a directory in BEIR's format: corpus.jsonl, queries.jsonl and qrels/SPLIT.tsv),
optionally with reranking.
"""

from __future__ import annotations

import functools
import itertools
import json
from collections.abc import Callable, Mapping
from typing import Any

from absl import flags as absl_flags
from etils import epy

from bert_jax.commands import shared
from bert_jax.errors import UserError
from bert_jax.io import checks, comma_lists, progress
from bert_jax.io.wording import counted
from bert_jax.settings.flags import Define

with epy.lazy_imports():
    from bert_jax import convert
    from bert_jax.inference import embedding, embedding_scores, held_out, minimal_pairs
    from bert_jax.parallel import compiler_options
    from bert_jax.runs import sweep
    from bert_jax.tasks import glue, predictions, registry
    from bert_jax.training import evaluators
    from bert_jax.workdir import run_directory


_OF_TASKS = ("input", "output", "overwrite", "dtype", "null_score_diff_threshold")
# The flags that each kind of evaluation uses, in addition to --json, by the flag that selects it.
_USED = {
    "input": ("text", "label", *_OF_TASKS, "model", "choices"),
    "workdir": (*_OF_TASKS, "split", "step"),
    "records": ("model", "split", "rows", "dtype"),
    "minimal_pairs": ("model", "input", "output", "overwrite", "dtype"),
    "similarity": ("model", "columns", "dtype"),
    "retrieval": ("model", "split", "rerank", "dtype"),
}


def define_flags(define: Define) -> None:
    shared.add_finetuned(
        define,
        "for one table",
        "Also write the predictions to this file: .tsv, .csv or .jsonl; for tags .conll, .txt, .tsv or "
        ".jsonl. With --minimal_pairs, a .jsonl with the scores of the sentences.",
    )
    what = f"{shared.MODEL}; with --input {shared.FINETUNED}"
    define.string("model", f"Model, instead of --workdir: {what}.")
    define.string("records", "Records of `bert-jax data` with the model's vocabulary.")
    define.string(
        "split",
        "Split of the run's files: train, dev (default), or SPLIT for SPLIT.tsv in data_dir. With --records, "
        "default eval; with --retrieval, default test.",
    )
    define.string(
        "input",
        "Labeled file with the columns of the training file. With --minimal_pairs: JSON lines with UID, "
        "sentence_good and sentence_bad (BLiMP).",
    )
    shared.add_text_columns(define, " With --input and --model. Default: one with a usual name.")
    define.string("label", "Column of the label, with --input and --model. Default: one with a usual name.")
    define.boolean("minimal_pairs", "Score the model on minimal pairs.")
    define.string(
        "similarity", "Table of text pairs with scores, to correlate with the cosines of their vectors."
    )
    define.string("retrieval", "Directory in BEIR's format, to search with the model's vectors.")
    shared.add_reranker(define)
    define.string("columns", "Columns of --similarity. Default: sentence1,sentence2,score.")
    define.integer("rows", "Number of rows of --records to use. 0: all.", 0)
    define.json()


def run(flags: absl_flags.FlagValues, args: list[str]) -> None:
    modes = [name for name in _USED if name != "input" and flags[name].value]
    shared.check_one(flags, *(modes or _USED))
    mode = modes[0] if modes else "input"
    shared.check_given(flags, () if mode == "workdir" else ("model",), f"--{mode}")
    shared.at_least(flags, rows=0)
    shared.check_unused(flags, {*itertools.chain(*_USED.values())}.difference(_USED[mode]), f"--{mode}")
    compiler_options.enable_compilation_cache()
    functions = {"records": _of_records, "minimal_pairs": _of_minimal_pairs}
    functions |= dict.fromkeys(("workdir", "input"), _of_task)
    functions.get(mode, functools.partial(_of_vectors, mode=mode))(flags)


def _of_records(flags: absl_flags.FlagValues) -> None:
    """Prints the losses of a pre-trained model on records."""
    split = flags.split or "eval"
    with progress.of_batches("evaluating") as on_batch:
        options = {"split": split, "rows": flags.rows, "dtype": flags.dtype, "log": progress.log}
        scores = held_out.held_out(flags.model, flags.records, on_batch=on_batch, **options)
    title = f"{counted(int(scores['rows']), 'row')} of {flags.records}, split {split}"
    facts = {"records": flags.records, "split": split, "checkpoint": flags.model}
    _print(flags, f"{title}, checkpoint {flags.model}", facts, scores)


def _of_minimal_pairs(flags: absl_flags.FlagValues) -> None:
    """Prints how often a pre-trained model finds the grammatical one of two sentences more likely."""
    if flags.output:
        checks.check_output_file(flags.output, (".jsonl",), overwrite=flags.overwrite)
    pairs = minimal_pairs.read(flags.input) if flags.input else minimal_pairs.generate()
    scorer = minimal_pairs.SentenceScorer(flags.model, progress.log, flags.dtype)
    with progress.Progress() as shown:
        shown.start("scoring", 2 * len(pairs), "sentences")
        scores, summary = minimal_pairs.evaluate(scorer, pairs, shown.at)
    if flags.output:
        names = (*minimal_pairs.FIELDS, "score_good", "score_bad")
        rows = ((*pair, *both) for pair, both in zip(pairs, scores.tolist(), strict=True))
        predictions.write_json_lines(flags.output, (dict(zip(names, row, strict=True)) for row in rows))
    if flags.json:
        print(json.dumps({"checkpoint": scorer.source, "minimal_pairs": summary}))
        return
    of = f"{flags.input or 'bert-jax'}, checkpoint {scorer.source}{scorer.engine.unknown}"
    print(f"{counted(len(pairs), 'pair')} of {of}")
    _print_table(summary)


def _of_vectors(flags: absl_flags.FlagValues, mode: str) -> None:
    """Prints the quality of a model's vectors."""
    path: str = getattr(flags, mode)
    score: Callable[..., dict[str, float]]
    # Mistakes in the files are reported before a model is loaded.
    if mode == "retrieval":
        judged = embedding_scores.read_retrieval(path, flags.split or "test")
        score = functools.partial(embedding_scores.retrieval, judged=judged)
    else:
        pairs = embedding_scores.read_similarity(path, flags.columns or "", progress.log)
        score = functools.partial(embedding_scores.similarity, pairs=pairs)
    if reranker := shared.load_reranker(flags):
        score = functools.partial(score, reranker=reranker)
    model = convert.load(flags.model, log=progress.log)
    embedder = embedding.Embedder(model, dtype=flags.dtype, log=progress.log)
    title = f"{path}, checkpoint {model.source}, pooling {embedder.pooling}"
    _print(flags, title, {"file": path, "checkpoint": model.source}, score(embedder))


def _of_task(flags: absl_flags.FlagValues) -> None:
    """Prints the scores of fine-tuned models."""
    directories = comma_lists.paths(flags.workdir or "")
    if len(directories) > 1:
        shared.check_unused(flags, _USED["workdir"], "several runs")
        return _table(directories, flags.json)
    shared.check_one(flags, "input", "split", required=False)
    model = shared.load_finetuned(flags, "label")
    task = model.task
    if flags.output:
        shared.check_predictions_file(flags, task)
    path = shared.input_file(flags, model)
    model.find_columns(path)
    examples = task.read(path)
    examples.warn(progress.log)
    with progress.of_batches("evaluating") as on_batch:
        predictions = model.predict(examples, on_batch)
    breakdown = predictions.breakdown()
    if flags.output:
        predictions.write(flags.output)
    facts = {"file": path, "examples": len(examples), "checkpoint": model.source}
    title = f"{counted(len(examples), 'example')} of {path}, checkpoint {model.source}{model.unknown}"
    _print(flags, title, facts, task.score(predictions), {"by_class": breakdown} if breakdown else {})
    if breakdown and not flags.json:
        _print_table(breakdown)


def _table(directories: list[str], as_json: bool) -> None:
    """Prints the best score of each GLUE run, the median for runs with --seeds, and the average."""
    scores = {}
    for directory in directories:
        summary = sweep.read_summary(directory)
        run = run_directory.read_run(summary["run"] if summary else directory)
        task = registry.spelled(run["config"].get("task", run["command"]))
        glue.submission_files(task)
        best = summary or evaluators.read_best(directory)
        if task in scores or not best or not best["scores"]:
            what = f"a second run of {task}" if task in scores else "a run without an evaluation"
            raise UserError(f"--workdir: {directory} is {what}; expected one evaluated run of each task")
        scores[task] = best["scores"]
    if as_json:
        print(json.dumps({"scores": scores, "average": glue.average(scores)}))
    else:
        print("\n".join(glue.table(scores)))


def _print(
    flags: absl_flags.FlagValues,
    title: str,
    facts: Mapping[str, Any],
    scores: Mapping[str, float],
    more: Mapping[str, Any] = {},
) -> None:
    """Prints scores as JSON, or one per line: fractions with four digits, counts as integers."""
    if flags.json:
        print(json.dumps({**facts, "scores": scores, **more}))
        return
    print(title)
    for name, value in scores.items():
        print(f"  {name:<20} {value:,}" if isinstance(value, int) else f"  {name:<20} {value:.4f}")


def _print_table(rows: Mapping[str, Mapping[str, float]]) -> None:
    """Prints scores by class: fractions with four digits, counts as integers."""
    width = max(map(len, rows))
    names = list(next(iter(rows.values())))
    print(f"  {'':<{width}} " + "".join(f"{name:>11}" for name in names))
    for label, row in rows.items():
        shown = (f"{x:>11,}" if isinstance(x, int) else f"{x:>11.4f}" for x in row.values())
        print(f"  {label:<{width}} " + "".join(shown))
