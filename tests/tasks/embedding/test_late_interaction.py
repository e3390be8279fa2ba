"""Late interaction: rows with markers and [MASK], a run that learns, ranks, and the reranking of a search."""

import itertools

import numpy as np
import pytest
from support.fine_tuned import LEARNING, command, learn, make_task, rerank

from bert_jax import tokenization
from bert_jax.tasks.embedding import TokenVectors, ranked_by_cosine, ranked_by_tokens
from bert_jax.tasks.table import Examples

MARKS, LENGTHS = ("[unused0]", "[unused1]", "[unused2]"), {"query_length": 8, "vector_size": 16}


def groups():
    """A description, another one of the same thing, and one with another color."""
    colors = ("red", "green", "blue")
    for i, animal, number in itertools.product(range(3), ("cat", "dog", "bird"), ("one", "two", "three")):
        color, other = colors[i], colors[i - 1]
        yield (
            f"the {color} {animal} is {number}",
            f"{number} {animal}s {color}",
            f"{number} {animal}s {other}",
        )


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    directory = tmp_path_factory.mktemp("groups")
    rows = ["first\tsecond\twrong", *map("\t".join, groups())]
    for name in ("train", "dev"):
        (directory / f"{name}.tsv").write_text("\n".join(rows) + "\n")
    (directory / "docs.txt").write_text("".join(f"{second}\n" for _, second, _ in groups()))
    return directory


@pytest.fixture(scope="module")
def marked(tmp_path_factory, vocabulary):
    """A vocabulary with markers and punctuation."""
    path = tmp_path_factory.mktemp("marked") / "vocab.txt"
    path.write_text(vocabulary.read_text() + "\n".join([*MARKS, ".", "!", "##?", "##s!", "!!"]) + "\n")
    return path


@pytest.mark.long
def test_a_run_finds_the_second_texts_and_orders_documents(files, pretrained, tmp_path, capsys):
    run = tmp_path / "run"
    flags = ["--config.data.text_b=second", "--config.data.negatives=wrong", *LEARNING, "--config.epochs=30"]
    flags += ["--config.max_seq_length=12", "--config.accumulate_steps=2"]
    flags += [f"--config.{name}={value}" for name, value in LENGTHS.items()]
    columns = dict(config="finetune/late_interaction", suffix="tsv", text="first", label="")
    _, best = learn(command(files, run, pretrained, *flags, **columns), run, capsys)
    assert best["mrr"] > 0.9 and best["recall10"] == 1
    queries, right, _ = zip(*list(groups())[::5], strict=True)
    found = rerank(run, pretrained, files / "docs.txt", queries, "first\tsecond", capsys)
    assert [texts[0] for texts in found] == [*right]


def test_rows_have_markers_and_queries_are_filled_up_with_masks(marked, tmp_path):
    path, tokenizer = tmp_path / "x.tsv", tokenization.load(marked)
    path.write_text(
        "q\tp\tn\nthe cat\ta red dog .\tone\n" + "the a " * 9 + "\tthree " + "two " * 20 + "\ttwo\n"
    )
    data = dict(text_a="q", text_b="p", negatives="n")
    task = make_task(marked, "lateinteraction", fields=LENGTHS, **data)
    rows = task.encode(task.read_training(str(path)))
    assert rows.rows_per_example == task.objective().group == 3 and rows.truncated == 1
    found = [
        " ".join(tokenizer.tokens[i] for i in rows.tokens[begin:end])
        for begin, end in zip(rows.offsets[:-1], rows.offsets[1:], strict=True)
    ]
    assert found == [
        "[CLS] [unused0] the cat [SEP] [MASK] [MASK] [MASK]",
        "[CLS] [unused1] a red dog . [SEP]",
        "[CLS] [unused1] one [SEP]",
        "[CLS] [unused0] the a the a the [SEP]",
        "[CLS] [unused1] three " + "two " * 12 + "[SEP]",
        "[CLS] [unused1] two [SEP]",
    ]
    assert rows.first_lengths.tolist() == rows.lengths.tolist() == [8, 7, 4, 8, 16, 4]
    assert [tokenizer.tokens[i] for i in task.objective().skipped] == [".", "!", "##?"]


def examples_of(first, second):
    ids = list(map(str, range(len(first))))
    return Examples("x.tsv", ids, first, second)


def test_ranks_are_those_of_scores_by_loops(monkeypatch):
    monkeypatch.setattr("bert_jax.tasks.embedding._DOCUMENTS", 7)
    monkeypatch.setattr("bert_jax.tasks.embedding._CHUNK", 5)
    rng = np.random.default_rng(0)
    first = [f"q{number}" for number in rng.integers(0, 8, 20)]
    second = [f"a{number}" for number in rng.integers(0, 14, 20)]
    of_first = {text: rng.normal(size=(3, 4)).astype(np.float32) for text in first}
    of_second = {text: rng.normal(size=(rng.integers(2, 40), 4)).astype(np.float32) for text in second}
    counts = {text: np.arange(len(x)) % 3 != 1 for text, x in of_second.items()}
    ends = np.cumsum([len(of_second[text]) for text in second])
    documents = TokenVectors(
        np.concatenate([of_second[text] for text in second]),
        np.stack([ends - [len(of_second[text]) for text in second], ends], axis=1),
        np.concatenate([counts[text] for text in second]),
    )
    queries = np.stack([of_first[text] for text in first])
    found = ranked_by_tokens(examples_of(first, second), queries, documents)

    def score(a, b):
        return sum(max(x @ y for y in of_second[b][counts[b]]) for x in of_first[a])

    for row, (a, b) in enumerate(zip(first, second, strict=True)):
        others = {y for x, y in zip(first, second, strict=True) if x == a} - {b}
        ordered = sorted({*second} - others, key=lambda text: -score(a, text))
        assert found.predicted[row] == 1 + ordered.index(b)
        np.testing.assert_allclose(found.outputs[row, 0], score(a, b), rtol=1e-5)


@pytest.mark.parametrize("collapsed", [slice(0, 2), slice(1, 2)], ids=["all", "second"])
def test_a_model_for_which_texts_are_alike_finds_nothing(collapsed):
    vectors = np.random.default_rng(0).normal(size=(50, 2, 8)).astype(np.float32)
    vectors[:, collapsed] = 1
    vectors /= np.linalg.norm(vectors, axis=-1, keepdims=True)
    texts = [[f"{side}{number}" for number in range(50)] for side in "ab"]
    assert set(ranked_by_cosine(examples_of(*texts), vectors).predicted) == {50}
    vectors[:] = np.nan
    assert set(ranked_by_cosine(examples_of(*texts), vectors).predicted) == {50}
