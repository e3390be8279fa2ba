"""Files of six examples for every kind of task, and configurations of runs of one step on them."""

import json

import pytest
from support.tiny_model import tiny_config

from bert_jax import tasks, tokenization
from bert_jax.tasks import fields

SENTENCES = ["the red cat", "a blue dog is big", "one bird", "two small cat", "the dog", "a cat three"]


@pytest.fixture(scope="module")
def task_files(tmp_path_factory):
    """{kind of task: (its training file, fields of the configuration)}."""
    folder = tmp_path_factory.mktemp("files")

    def table(name, header, cells):
        path = folder / f"{name}.csv"
        rows = [f"{text},{cell}" for text, cell in zip(SENTENCES, cells, strict=True)]
        path.write_text("\n".join([f"text,{header}", *rows]) + "\n")
        return str(path)

    squad = folder / "squad.jsonl"
    squad.write_text(
        "".join(
            json.dumps({"id": str(i), "question": "is the", "context": text, "answers": text.split()[-1],
                        "answer_start": len(text) - len(text.split()[-1])}) + "\n"
            for i, text in enumerate(SENTENCES)
        )
    )  # fmt: skip
    conll = folder / "tags.conll"
    tagged = ["\n".join(f"{word} {'B-X' if word in ('cat', 'dog') else 'O'}" for word in text.split())
              for text in SENTENCES]  # fmt: skip
    conll.write_text("\n\n".join(tagged) + "\n")
    text = {"data.text_a": "text", "data.label": "label"}
    choices = text | {"data.choices": "x,y"}
    return {
        "classification": (table("classes", "label", "ababab"), text),
        "regression": (table("numbers", "label", "123123"), text),
        "multilabel": (table("several", "label", "ababab"), text),
        "multiplechoice": (table("choices", "x,y,label", ["one,two,0", "one,two,1"] * 3), choices),
        "squad2": (str(squad), {"max_query_length": 4, "doc_stride": 4}),
        "tagging": (str(conll), {}),
        "embedding": (
            table("triples", "second,wrong,label", [f"the {i},no,{i}" for i in range(len(SENTENCES))]),
            text | {"data.text_b": "second", "data.negatives": "wrong"},
        ),
        "lateinteraction": (
            table("documents", "second,wrong", [f"the {i},no" for i in range(len(SENTENCES))]),
            {"data.text_a": "text", "data.text_b": "second", "data.negatives": "wrong", "query_length": 8},
        ),
        "reranking": (
            table("candidates", "second,wrong", [f"the {i},no" for i in range(len(SENTENCES))]),
            {"data.text_a": "text", "data.text_b": "second", "data.negatives": "wrong"},
        ),
    }


def configured(task, task_files, vocabulary):
    """A run from scratch, of a step."""
    path, more = task_files[task]
    config = tasks.default_config("tiny", task)
    config.model = tiny_config(tokenization.load(vocabulary).vocab_size).to_dict()
    given = {"vocab": str(vocabulary), "max_seq_length": 16, "batch_size": 8, "epochs": 1.0}
    for name, value in (given | {"data.train": path, "data.eval": path} | more).items():
        fields.assign(config, name, value)
    return config
