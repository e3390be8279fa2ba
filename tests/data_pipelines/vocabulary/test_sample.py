"""The sample of a corpus that a vocabulary is learned from, and what of it is held out."""

import io

from bert_jax.io.progress import Progress
from data_pipelines import vocabulary
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
    assert 90_000 < sum(d.size for d in sample + held_out) < 200_000
    files = {document.key.split(":")[0] for document in sample}
    assert len(files) >= 2
    again = sampled(paths, "text", 100_000, seed=1)
    other = sampled(paths, "text", 100_000, seed=2)
    assert again[0] == sample != other[0]
    assert not {d.key for d in sample} & {d.key for d in held_out}
