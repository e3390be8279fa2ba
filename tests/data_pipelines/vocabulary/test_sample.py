"""The sample of a corpus that a vocabulary is learned from, and what of it is held out."""

import io
import os
import tracemalloc

from bert_jax.io.progress import Progress
from data_pipelines import readers, vocabulary
from data_pipelines.vocabulary import training


def sampled(paths, format, sample_bytes, seed):
    options = vocabulary.Options(input=tuple(paths), output="", input_format=format, seed=seed)
    (part,) = training.sample(options, sample_bytes, Progress(io.StringIO()))
    return part.training, part.held_out


def test_the_sample_is_bounded_and_spread(tmp_path):
    paths = []
    for number in range(10):
        path = tmp_path / f"{number}.txt"
        path.write_text("".join(f"Word{number}x number {i} is here.\n\n" for i in range(4000)))
        paths.append(str(path))
    sample, held_out = sampled(paths, "text", 100_000, seed=1)
    assert 90_000 < sample.size + held_out.size < 200_000
    files = {document.key.split(":")[0] for document in sample.documents}
    assert len(files) >= 2
    again = sampled(paths, "text", 100_000, seed=1)
    other = sampled(paths, "text", 100_000, seed=2)
    assert again[0].documents == sample.documents != other[0].documents
    assert not {d.key for d in sample.documents} & {d.key for d in held_out.documents}


def test_memory_does_not_grow_with_the_corpus(tmp_path):
    path = tmp_path / "big.txt"
    with open(path, "w") as file:
        for i in range(200_000):
            file.write(f"Sentence {i} of a file that is much larger than the sample.\n\n")
    tracemalloc.start()
    readers.list_inputs(str(path))
    sample, held_out = sampled([str(path)], "text", 200_000, seed=1)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert sample.size + held_out.size < 300_000 and peak < 8_000_000 < os.path.getsize(path)
