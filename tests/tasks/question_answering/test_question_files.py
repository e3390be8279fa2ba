"""Files of questions, right and wrong."""

import gzip
import json
import re

import pytest

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


def without(value, name):
    return {key: kept for key, kept in value.items() if key != name}


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
    assert len(found) == found.rows == 2 and found.warning() == ""


def test_questions_without_an_answer(write):
    none = {"id": "q2", "question": "Who lost?", "answers": [], "is_impossible": True}
    plausible = question("q3", is_impossible=True)
    path = write(squad(question(is_impossible=False), none, plausible))
    found = read_questions(path, v2=True, training=True)
    assert found.starts == [4, NO_ANSWER, NO_ANSWER] and found.answers == [["Broncos"], [], []]
    assert read_questions(path, v2=True).answers == [["Broncos"], [], ["Broncos"]]  # as the script scores it
    with pytest.raises(
        UserError, match=r"question 'q2': no answer in 'answers', as in SQuAD 2.0; set --config.v2"
    ):
        read_questions(path)


ROWS = {
    "list": {"answers": [{"text": "Broncos", "answer_start": 4}]},
    "columns": {"answers": {"text": ["Broncos"], "answer_start": [4]}},
    "text": {"answers": "Broncos", "answer_start": 4},
}


@pytest.mark.parametrize("answers", ROWS.values(), ids=ROWS)
def test_json_lines(write, answers):
    row = {"id": 7, "question": "Who won?", "context": CONTEXT} | answers
    found = read_questions(write(json.dumps(row) + "\n", "dev.jsonl"), training=True)
    assert (found.ids, found.answers, found.starts) == (["7"], [["Broncos"]], [4])


BAD = {
    "no-id": (without(question(), "id"), r"data\[0\].paragraphs\[0\].qas\[1\]: .*no 'id'"),
    "duplicate": (question("q0"), "question 'q0': another question has this id"),
    "empty-question": (question(question=" "), "question 'q1': 'question' is str, expected a text that is"),
    "no-answers": (without(question(), "answers"), "question 'q1': no 'answers'"),
    "odd-answer": (question(answers=["Broncos"]), "question 'q1': no 'answers', a list of"),
    "no-text": (question(answers=[{"answer_start": 4}]), "question 'q1': an answer without 'text'"),
    "odd-start": (question(start="4"), "question 'q1': answer_start is '4', expected a whole number"),
    "misaligned": (question(start=12), "question 'q1': the answer 'Broncos' is not at its answer_start, 12"),
    "outside": (question(start=90), "is not at its answer_start, 90"),
    "no-start": (question(answers=[{"text": "Broncos"}]), "is not at its answer_start, -2"),
}


@pytest.mark.parametrize("item, message", BAD.values(), ids=BAD)
def test_a_bad_question_is_left_out_or_stops_the_run(write, item, message):
    good = [question(f"q{i}" if i != 1 else "one") for i in range(40)]
    path = write(squad(good[0], item, *good[1:]))
    found = read_questions(path, training=True)
    assert found.ids == [each["id"] for each in good]
    assert (found.rows, found.malformed) == (41, 1)
    assert re.search(rf"dev.json: 1 of 41 questions skipped \(first: .*{message}", found.warning())
    with pytest.raises(UserError, match=message):
        read_questions(write(squad(good[0], item, *good[1:10])), training=True)


def test_an_answer_that_is_a_little_off_is_found_in_its_words(write):
    found = read_questions(write(squad(question(start=5, text="Broncos"))), training=True)
    assert found.starts == [5]
    spaced = question(text="Broncos won", start=4)
    found = read_questions(write(squad(spaced, context="The Broncos \n won in Denver.")), training=True)
    assert found.answers == [["Broncos won"]]


def test_an_evaluation_keeps_a_question_whose_answer_is_elsewhere(write):
    found = read_questions(write(squad(question(start=12))))
    assert found.answers == [["Broncos"]] and found.starts == [UNKNOWN] and not found.malformed


@pytest.mark.parametrize(
    "content", ['{"data": [', "[]", '{"data": [{"paragraphs": 3}]}', "[" * 100_000, b"\xff"]
)
def test_a_file_of_another_layout(tmp_path, content):
    (tmp_path / "dev.json").write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(UserError, match=r"dev.json: not SQuAD's layout|more than 5%|no questions") as error:
        read_questions(str(tmp_path / "dev.json"))
    assert "\n" not in str(error.value)
