"""Makes rows of the google schema: next-sentence pairs with static masks.

The random draws are the same as those of google-research/bert (create_pretraining_data.py).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from bert_jax.data import google, packed, tfrecord
from bert_jax.data.google import encoding
from bert_jax.io import atomic, files
from data_pipelines import sorted_runs
from data_pipelines.stages import buckets, google_instances


def make_rows(task: buckets.RowsTask) -> dict[str, Any]:
    """Writes the rows of a bucket in random order; returns their counts, which `manifests.merge_splits` sums.

    The memory is that of the documents of the bucket. The reference shuffles all its instances in memory;
    here they are first written to a file.
    """
    tokenizer, bucket = task.tokenizer, task.bucket
    settings = {**task.settings, "dupe_factor": task.dupe_factor}
    rng = task.rng()
    dtype = packed.id_dtype(tokenizer.vocab_size)
    documents = sorted_runs.read_documents(task.runs, bucket.low, bucket.high, dtype, in_order=True)
    rng.shuffle(documents)
    made = google_instances.Instances(documents, tokenizer, settings, rng)
    lengths = np.zeros(settings["max_seq_length"] + 1, np.int64)
    counts = {"documents": len(documents), "tokens": 0, "random_next": 0, "predictions": 0}
    counts["text_tokens"] = sum(document.size for document in documents)
    del documents
    unshuffled, sizes = task.output + "-unshuffled", [np.zeros(1, np.int64)]
    with atomic.replace_file(unshuffled, sync=False) as file:
        for rows in made.blocks():
            whole = len(rows.lengths)
            if task.most_tokens is not None:
                middles = counts["tokens"] + np.cumsum(rows.lengths) - rows.lengths / 2
                kept = np.count_nonzero(middles <= task.most_tokens)
                rows = google.Rows(*(values[:kept] for values in rows))
            lengths += np.bincount(rows.lengths, minlength=len(lengths))
            counts["tokens"] += int(rows.lengths.sum())
            counts["random_next"] += int(rows.next_sentence_labels.sum())
            counts["predictions"] += int(rows.predictions.sum())
            content, edges = encoding.encode(rows.features())
            file.write(content.data)
            sizes.append(np.diff(edges))
            if len(rows.lengths) < whole:
                break
        tfrecord.write_index(unshuffled, np.cumsum(np.concatenate(sizes))[:-1])
    count = int(lengths.sum())
    shuffled = (tfrecord.RecordFile(unshuffled), made.order(count))
    _, size = tfrecord.copy_records(task.output, [shuffled])
    for path in (unshuffled, unshuffled + tfrecord.INDEX_SUFFIX):
        files.remove(path)
    return counts | {
        "rows": count,
        "sequences": count,
        "sequence_lengths": lengths.tolist(),
        "bytes": size,
        "files": [],
    }
