import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.tags import to_iob1

from bert_jax.tasks.tagging import entities

TAGS = ["O", "B-PER", "I-PER", "B-LOC", "I-LOC"]
IOBES = [*TAGS, "E-PER", "S-PER", "E-LOC", "S-LOC"]
sequences = st.lists(st.sampled_from(TAGS), max_size=12)


def conlleval_spans(tags):
    """Chunks by the rules of conlleval's startOfChunk and endOfChunk."""
    found, start = set(), None
    pairs = [tag.split("-") if "-" in tag else (tag, "") for tag in [*tags, "O"]]
    before = ("O", "")
    for place, (prefix, type) in enumerate(pairs):
        ends = before[0] in "ES" or (before[0] in "BI" and (prefix in "BSO" or type != before[1]))
        starts = prefix in "BS" or (prefix in "IE" and (before[0] in "OES" or type != before[1]))
        if ends:
            found.add((before[1], start, place))
        if starts:
            start = place
        before = (prefix, type)
    return found


@given(st.lists(st.sampled_from(IOBES), max_size=12))
def test_spans_are_those_of_conlleval(tags):
    assert set(entities.spans(tags)) == conlleval_spans(tags)


@given(sequences)
def test_schemes_spell_the_same_entities(tags):
    bio2 = entities.to_bio2(tags)
    assert entities.to_bio2(bio2) == bio2 and entities.spans(bio2) == entities.spans(tags)
    assert entities.to_bio2(to_iob1(bio2)) == bio2


@pytest.mark.parametrize(
    "given, expected",
    [
        ("S-PER B-LOC E-LOC O U-PER B-PER L-PER", "B-PER B-LOC I-LOC O B-PER B-PER I-PER"),
        ("S-PER I-PER O U-PER L-PER", "B-PER B-PER O B-PER B-PER"),
        ("B S E", "B B B"),
        ("B I I O I", "B I I O B"),
        ("B M M E S O M-LOC", "B I I I B O B-LOC"),
        ("I-B-2 I-B-2", "B-B-2 I-B-2"),
    ],
    ids=str,
)
def test_repairs(given, expected):
    assert entities.to_bio2(given.split()) == expected.split()


@pytest.mark.parametrize(
    "gold, guess, right, predicted, there",
    [
        ("B-PER I-PER O B-LOC", "B-PER I-PER O B-LOC", 2, 2, 2),
        ("B-PER I-PER O B-LOC", "B-PER I-PER O B-PER", 1, 2, 2),
        ("B-PER I-PER O O", "B-PER O O O", 0, 1, 1),  # a boundary that is off
        ("B-PER I-PER I-PER", "B-PER I-PER B-PER", 0, 2, 1),  # cut in two
        ("B-PER B-PER", "B-PER I-PER", 0, 1, 2),  # two in one
        ("B-PER I-PER O", "I-PER I-PER O", 1, 1, 1),  # an invalid start
        ("O O B-LOC", "I-PER I-LOC I-LOC", 0, 2, 1),
        ("O O O", "O O O", 0, 0, 0),
        ("O O O", "B-PER O O", 0, 1, 0),
    ],
    ids=str,
)
def test_counts_of_conlleval(gold, guess, right, predicted, there):
    found = entities.total(entities.count([gold.split()], [guess.split()]))
    assert found == (right, predicted, there)
    scores = found.scores
    assert scores["precision"] == (right / predicted if predicted else 0)
    assert scores["recall"] == (right / there if there else 0)
    assert scores["f1"] == pytest.approx(2 * right / (predicted + there) if right else 0)
