"""Times the stages of making records, compared with the bare tokenizers library, and the loader.

    python benchmarks/records.py --input='corpus/*' --input_format=wikiextractor --vocab=vocab.txt
    python benchmarks/records.py --records=records1,records2

It uses one process, one Rust thread and one pass over the text. Times are CPU seconds, which other work on
the machine hardly affects.
"""

from __future__ import annotations

import itertools
import os
import random
import tempfile
import time

import tokenizers
from absl import app, flags

from bert_jax import tokenization
from bert_jax.data import loader, packed, records, tfrecord
from data_pipelines import readers, sentences, sorted_runs
from data_pipelines.stages import packed_rows, pairs

FLAGS = flags.FLAGS
flags.DEFINE_string("input", "", "Text to make rows of.")
flags.DEFINE_string("input_format", "text", "Its format.")
flags.DEFINE_string("vocab", "", "A WordPiece vocabulary.")
flags.DEFINE_string("records", "", "Record directories for the loader.")
flags.DEFINE_integer("max_seq_length", 128, "The most tokens of a row.")

_BATCH = 2000  # sentences


def batches(texts):
    return (texts[start : start + _BATCH] for start in range(0, len(texts), _BATCH))


def stages(paths: list[str]) -> None:
    """Prints the CPU seconds of each stage; each stage processes the whole text."""
    megabytes = sum(map(os.path.getsize, paths)) / 1e6
    tokenizer = tokenization.load(FLAGS.vocab)
    layout, length = tokenizer.layout, FLAGS.max_seq_length
    bare = tokenizers.BertWordPieceTokenizer(FLAGS.vocab, lowercase=tokenizer.lower_case)
    dtype = packed.id_dtype(tokenizer.vocab_size)
    total = 0.0

    def timed(name, function, own=True):
        nonlocal total
        begun = time.process_time()
        result = function()
        seconds = time.process_time() - begun
        total += seconds * own
        print(f"| {name} | {seconds:.2f} | {megabytes / seconds:.2f} |", flush=True)
        return result

    print(f"{megabytes:.1f} MB of text\n\n| stage | CPU s | MB/s |\n|---|---|---|")
    ranges = readers.split_ranges(paths, 1 << 40, FLAGS.input_format)
    documents = timed(
        "read", lambda: [d for r in ranges for d in readers.read_documents(r, FLAGS.input_format)]
    )
    split = timed("split into sentences", lambda: [sentences.split(document) for document in documents])
    texts = list(itertools.chain.from_iterable(split))
    ids = timed(
        "tokenize", lambda: [one for batch in batches(texts) for one in tokenizer.encode_batch(batch)]
    )
    with tempfile.TemporaryDirectory() as folder:
        path, encoded = os.path.join(folder, "run"), iter(ids)

        def write_run():
            run = sorted_runs.RunWriter(dtype)
            for document, texts in zip(documents, split, strict=True):
                kept = [one for one in itertools.islice(encoded, len(texts)) if one]
                if kept:
                    run.add(sorted_runs.document_key(document.key), kept)
            run.write(path)

        timed("write runs", write_run)
        stored = timed("read runs", lambda: sorted_runs.read_documents([path], 0, 1 << 64, dtype))
        made = timed("pairs", lambda: list(pairs.make_pairs(stored, length, random.Random(0))))
        sequences = timed(
            "arrays",
            lambda: [
                packed.PackedSequence(
                    layout.row(p.first, p.second).astype(dtype),
                    layout.first_length(len(p.first), pair=True),
                    p.label,
                )
                for p in made
            ],
        )
        most = packed.default_sequences_per_row(length)
        rows = timed("pack", lambda: list(packed_rows.pack(sequences, length, most, random.Random(0))))
        timed("write records", lambda: tfrecord.write_records(path, map(packed.encode_row, rows)))
    print(f"| **all** | {total:.2f} | {megabytes / total:.2f} |")
    timed(
        "(bare tokenizers, encode_batch)", lambda: [bare.encode_batch(b) for b in batches(texts)], own=False
    )


def load(directories: str) -> None:
    """Prints the tokens per second, without padding, of batches in random order."""
    dataset = records.open_dataset(directories, "train")
    for batch_size in (32, 256):
        best = best_cpu = 0.0
        for part in range(3):
            tokens, begun, begun_cpu = 0, time.monotonic(), time.process_time()
            batches = loader.train_batches(dataset, batch_size, 0, start_step=part * 10_000)
            for batch in itertools.islice(batches, 50_000 // batch_size):
                tokens += int(batch["lengths"].sum())
            best_cpu = max(best_cpu, tokens / (time.process_time() - begun_cpu))
            best = max(best, tokens / (time.monotonic() - begun))
            batches.close()
        print(
            f"batches of {batch_size}: {best / 1e6:.2f} million real tokens per second, "
            f"{best_cpu / 1e6:.2f} a CPU second (best of 3)"
        )


def main(_) -> None:
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    if FLAGS.input:
        stages(readers.list_inputs(FLAGS.input))
    if FLAGS.records:
        load(FLAGS.records)


if __name__ == "__main__":
    app.run(main)
