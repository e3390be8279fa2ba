"""Files of questions, right and wrong."""

import gzip
import json

import pyarrow
import pytest
from pyarrow import parquet

from bert_jax.errors import UserError
from bert_jax.tasks.question_answering.question_files import NO_ANSWER, UNKNOWN, read_questions

CONTEXT = "The Broncos won in Denver."


def question(id_="q1", text="Broncos", start=4, **more):
    return {"id": id_, "question": "Who won?", "answers": [{"text": text, "answer_start": start}]} | more


def squad(*questions, context=CONTEXT):
    return {
        "version": "1.1",
        "data": [{"title": "t", "paragraphs": [{"context": context, "qas": [*questions]}]}],
    }


@pytest.fixture
def write(tmp_path):
    def call(content, name="dev.json"):
        path = tmp_path / name
        text = content if isinstance(content, str) else json.dumps(content)
        path.write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
        return str(path)

    return call


@pytest.mark.parametrize("name", ["dev.json", "dev.json.gz"])
def test_squads_layout(write, name):
    second = question("q2") | {
        "answers": [{"text": "won", "answer_start": 12}, {"text": "it", "answer_start": 0}]
    }
    found = read_questions(write(squad(question(), second), name))
    assert found.ids == ["q1", "q2"] and found.questions == ["Who won?"] * 2
    assert found.contexts == [CONTEXT] and found.context_of == [0, 0]
    assert found.answers == [["Broncos"], ["won", "it"]] and found.starts == [4, 12]
    assert len(found) == found.rows == 2


def test_questions_without_an_answer(write):
    none = {"id": "q2", "question": "Who lost?", "answers": [], "is_impossible": True}
    plausible = question("q3", is_impossible=True)
    path = write(squad(question(is_impossible=False), none, plausible))
    found = read_questions(path, v2=True, training=True)
    assert found.starts == [4, NO_ANSWER, NO_ANSWER] and found.answers == [["Broncos"], [], []]
    assert read_questions(path, v2=True).answers == [["Broncos"], [], ["Broncos"]]  # as the script scores it
    with pytest.raises(UserError, match=r"question 'q2': no 'answers'.*v2=true"):
        read_questions(path)


ROWS = {
    "list": {"answers": [{"text": "Broncos", "answer_start": 4}]},
    "columns": {"answers": {"text": ["Broncos"], "answer_start": [4]}},
    "text": {"answers": "Broncos", "answer_start": 4},
}


@pytest.mark.parametrize("answers", ROWS.values(), ids=ROWS)
def test_json_lines(write, answers):
    row = {"id": 7, "question": "Who won?", "context": CONTEXT} | answers
    for path in (write(json.dumps(row) + "\n", "dev.jsonl"), write("", "dev.parquet")):
        if path.endswith(".parquet"):
            parquet.write_table(pyarrow.Table.from_pylist([row]), path)
        found = read_questions(path, training=True)
        assert (found.ids, found.answers, found.starts) == (["7"], [["Broncos"]], [4])


def test_an_evaluation_keeps_a_question_whose_answer_is_elsewhere(write):
    found = read_questions(write(squad(question(start=12))))
    assert found.answers == [["Broncos"]] and found.starts == [UNKNOWN] and not found.malformed
