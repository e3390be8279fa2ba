"""`bert-jax evaluate` of pre-trained models; the tests of the tasks cover fine-tuned models."""

import json
import shutil
from pathlib import Path

import pytest
from support import fine_tuned, pretrained, processes

from bert_jax import cli
from bert_jax.errors import UserError
from bert_jax.inference import minimal_pairs, predictor
from bert_jax.inference.held_out import held_out
from bert_jax.inference.minimal_pairs import SentenceScorer


@pytest.fixture(scope="module")
def records(tmp_path_factory):
    return processes.write_records(tmp_path_factory.mktemp("data") / "size=8,small")  # a name as in a grid


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory, records):
    return pretrained.write(tmp_path_factory.mktemp("model"), records / "vocab.txt")


@pytest.mark.long
def test_the_losses_on_records(records, checkpoint, capsys):
    command = ["evaluate", f"--model={checkpoint}", f"--records={records}", "--rows=9", "--split=train"]
    assert cli.main([*command, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["scores"] == held_out(checkpoint, str(records), rows=9, split="train")
    assert (found["records"], found["split"]) == (str(records), "train")
    capsys.readouterr()
    assert cli.main(command) == 0
    first, *lines = capsys.readouterr().out.splitlines()
    assert first == f"9 rows of {records}, split train, checkpoint {checkpoint}"
    shown = dict(line.split() for line in lines)
    assert shown["mlm_loss"] == f"{found['scores']['mlm_loss']:.4f}" and shown.keys() == set(found["scores"])


@pytest.mark.long
def test_minimal_pairs_of_a_file(checkpoint, tmp_path, capsys):
    pairs, output = tmp_path / "pairs.jsonl", tmp_path / "scores.jsonl"
    sentences = (("word1 word2", "word2 word1"), ("word3", "nobody"))
    rows = [{"UID": "one", "sentence_good": good, "sentence_bad": bad} for good, bad in sentences]
    pairs.write_text("".join(json.dumps(row) + "\n" for row in rows))
    command = ["evaluate", f"--model={checkpoint}", "--minimal_pairs", f"--input={pairs}"]
    assert cli.main([*command, f"--output={output}", "--json"]) == 0
    scores, summary = minimal_pairs.evaluate(SentenceScorer(checkpoint), minimal_pairs.read(str(pairs)))
    assert json.loads(capsys.readouterr().out)["minimal_pairs"] == summary
    written = [json.loads(line) for line in output.read_text().splitlines()]
    assert written[1] == rows[1] | dict(zip(("score_good", "score_bad"), scores[1], strict=True))
    assert "scores.jsonl exists already" in fine_tuned.mistake([*command, f"--output={output}"], capsys)


@pytest.mark.long
def test_a_finetuned_model_computes_in_float32_or_in_another_dtype(tmp_path, records, capsys):
    fields = {"text_a": "a", "label": "b"}
    vocabulary = records / "vocab.txt"
    run = fine_tuned.make_run(tmp_path / "run", vocabulary, "classification", ["no", "yes"], **fields)
    (tmp_path / "dev.tsv").write_text("a\tb\nword1 word2\tyes\nword3\tno\n")
    written = {"evaluate": [], "predict": []}
    for name, probabilities in written.items():
        for flags in ("--dtype=auto", "--dtype=float32", "--dtype=bfloat16"):
            output = tmp_path / f"{name}{flags}.jsonl"
            command = [name, f"--workdir={run}", f"--input={tmp_path}/dev.tsv", f"--output={output}", flags]
            assert cli.main(command) == 0
            rows = map(json.loads, output.read_text().splitlines())
            probabilities.append([row["probabilities"] for row in rows])
    assert written["evaluate"] == written["predict"]
    assert written["predict"][0] == written["predict"][1] != written["predict"][2]
    error = fine_tuned.mistake(["evaluate", f"--workdir={run},{run}", "--dtype=float32"], capsys)
    assert "--dtype has no effect with several runs" in error


def test_the_step_of_a_run(tmp_path, records):
    run = fine_tuned.make_run(
        tmp_path / "run", records / "vocab.txt", "classification", ["no", "yes"], text_a="a", label="b"
    )
    (step,) = (path.name for path in (run / "checkpoints").iterdir())
    shutil.copytree(run / "checkpoints" / step, run / "best" / step)
    shutil.copytree(run / "checkpoints" / step, run / "best" / "7")
    for which, place in (("best", "best"), ("last", "checkpoints"), (step, "checkpoints"), ("7", "best")):
        source = predictor.Predictor(str(run), which, log=lambda line: None).source
        assert Path(source).parent == run / place and (which != "7" or Path(source).name == "7")
    with pytest.raises(UserError, match=r"--step=8: .* has no such step"):
        predictor.Predictor(str(run), "8")
