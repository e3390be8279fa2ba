import dataclasses

import jax
import pytest

from bert_jax import cli, demo
from bert_jax.io import json_files


@dataclasses.dataclass
class Document:
    package: str
    sentences: tuple[str, ...]


@pytest.mark.parametrize(
    "text, words, tags",
    [
        ("Return it. (The default.)", "return it the default", "O B-PERIOD O B-PERIOD"),
        ('A "file", or None!', "a file or none", "O B-COMMA O B-PERIOD"),
        ("os.path - see it , then 3.5: now?", "os.path - see it then 3.5 now", "O O O B-COMMA O O B-PERIOD"),
        (", and", "and", "O"),
        ("", "", ""),
    ],
)
def test_marks_become_tags_of_the_words_before_them(text, words, tags):
    assert demo.punctuation(text) == list(zip(words.split(), tags.split(), strict=True))


def test_the_task_is_made_of_every_text_of_three_sentences_once(tmp_path):
    documents = [
        Document("email", tuple(f"The message has {i} parts, and no more." for i in range(30))),
        Document(
            "xml", ("Too short.", "These, too.", "Here.", *(f"The element has {i}." for i in range(11)))
        ),
    ]
    train, dev = demo.make_task(documents, 8)
    assert (len(train), len(dev)) == (8, 5)
    assert len({tuple(text) for text in train + dev}) == 13
    assert demo.make_task(documents, 8) == (train, dev)
    tags = [tag for text in train + dev for _, tag in text]
    assert (tags.count("B-PERIOD"), tags.count("B-COMMA")) == (39, 30)
    demo.write_task(tmp_path / "task" / "dev.jsonl", dev)
    rows = json_files.read_lines(tmp_path / "task" / "dev.jsonl")
    assert [list(zip(row["words"], row["tags"], strict=True)) for row in rows] == dev


@pytest.mark.slow
def test_the_whole_way(tmp_path, capsys):
    assert jax.device_count() == 8
    assert cli.main(["demo", "--quick", f"--workdir={tmp_path}"]) == 0
    said = capsys.readouterr().out
    for text in (
        "$ bert-jax vocab",
        "$ bert-jax data",
        "$ bert-jax pretrain",
        "$ bert-jax plot",
        "for a guess by the frequency of words",
    ):
        assert text in said
    assert (tmp_path / "curves.png").stat().st_size > 10_000
    assert all((tmp_path / f"finetune-{name}" / "best.json").exists() for name in ("pretrained", "scratch"))
    assert "best F1 of the commas and periods" in said
    assert "learn nothing" in said.splitlines()[-1]
    # Again: nothing is computed that is there.
    assert cli.main(["demo", "--quick", f"--workdir={tmp_path}"]) == 0
    assert "compiled the train step" not in capsys.readouterr().out
