"""Texts that the vocabulary does not know get a warning wherever rows are encoded."""

import numpy as np
import pytest
from support import fine_tuned
from support.pretrained import pretrained, vocabulary  # noqa: F401

from bert_jax import cli, tokenization
from bert_jax.runs import finetune
from bert_jax.tasks.rows.assembly import UnknownTokens

THAI = ["ภาษาไทย", "ประเทศอียิปต์"]


def warnings_of(lines):
    return [line for line in lines if line.startswith("warning") and "[UNK]" in line]


@pytest.fixture(scope="module")
def run(tmp_path_factory, vocabulary):  # noqa: F811
    directory = tmp_path_factory.mktemp("run") / "run"
    return fine_tuned.make_run(directory, vocabulary, "classification", ["a", "b"], text_a="0", label="1")


@pytest.fixture
def files(tmp_path):
    table = "text\tlabel\n" + "".join(f"{text}\t{label}\n" for text in THAI for label in "ab")
    (tmp_path / "thai.tsv").write_text(table)
    (tmp_path / "thai.txt").write_text("\n".join(THAI) + "\n")
    (tmp_path / "known.txt").write_text("a red cat\nthe big dog\n" * 30 + "the unheard bird\n")
    return tmp_path


@pytest.mark.parametrize("count, warned", [(6, True), (5, False)])
def test_the_fraction_without_special_tokens(vocabulary, count, warned):  # noqa: F811
    tokenizer, said = tokenization.load(vocabulary), []
    unknown = UnknownTokens(tokenizer, said.append)
    assert str(unknown) == ""
    unknown.add(tokenizer.layout.row(tokenizer.encode_batch(["a"])[0] * (100 - count)))
    unknown.add(np.concatenate([tokenizer.layout.row([tokenizer.unk_id])] * count))
    unknown.add(tokenizer.layout.row([]))
    assert str(unknown) == f"; {count}.0% of the tokens are [UNK]"
    assert len(warnings_of(said)) == len(said) == warned


def test_finetune(files, pretrained, tmp_path, capsys, monkeypatch):  # noqa: F811
    def stop(**arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr(finetune.train, "fit", stop)
    table = "text,label\n" + "".join(f"a cat,{label}\n" for label in "ab" * 10)
    (files / "train.csv").write_text(table)
    (files / "dev.csv").write_text(table + f"{THAI[0]},a\n" * 10)
    assert (
        cli.main(fine_tuned.command(files, tmp_path / "run", pretrained, "--config.max_seq_length=16")) == 130
    )
    lines = capsys.readouterr().out.splitlines()
    assert len(warnings_of(lines)) == 1  # of the second file
    (dev,) = (line for line in lines if line.startswith("dev:"))
    assert "20.0% of the tokens are [UNK]" in dev and "[UNK]" not in lines[0]
