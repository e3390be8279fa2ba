"""Fine-tuned runs of every task, with random weights, and rows for them."""

import pytest
from support.fine_tuned import make_run

# For each task, the options of its run and a few rows.
RUNS = {
    "classification": (
        dict(labels=["no", "yes"], text_a="text"),
        [{"text": "the red cat"}, {"id": "x", "text": "a dog is big " * 9}],
    ),
    "multilabel": (
        dict(labels=["b", "é"], text_a="text", label="label"), [{"text": "red", "id": 7}, {"text": "a"}],
    ),
    "regression": (
        dict(text_a="text", text_b="text_b", label="label"),
        [{"text": "the red cat", "text_b": "a dog"}, {"text": "a dog", "text_b": ""}],
    ),
    "reranking": (
        dict(text_a="text", text_b="text_b", negatives="others"),
        [{"text": "the red cat", "text_b": "a dog"}, {"text": "a blue dog", "text_b": "the bird is small"}],
    ),
    "tagging": (dict(labels=["O", "B-X", "I-X"]), [{"words": ["the", "cat"]}, {"words": ["one", "dog"]}]),
    "multiplechoice": (
        dict(labels=["0", "1"], text_a="text", label="label", choices="x,y"),
        [{"text": "the", "x": "cat", "y": "dog"}, {"text": "a", "choices": ["red", "big one"]}],
    ),
    "squad": (
        dict(fields={"max_query_length": 4, "doc_stride": 4}),
        [{"question": "is", "context": "the cat is a big dog"}, {"question": "the", "context": "red"}],
    ),
    "squad2": (
        dict(fields={"max_query_length": 4, "doc_stride": 4, "v2": True}),
        [{"question": "is", "context": "the cat is a big dog " * 4}, {"question": "the", "context": "red"}],
    ),
}  # fmt: skip


@pytest.fixture(scope="session")
def run_of(tmp_path_factory, vocabulary):
    """run_of(task) returns the directory of a run, which is made once."""
    made = {}

    def run(task):
        if task not in made:
            made[task] = make_run(tmp_path_factory.mktemp(task) / "run", vocabulary, task, **RUNS[task][0])
        return made[task]

    return run
