"""The parts in which the long tests are run."""

import dataclasses

import pytest
from support import parts


@dataclasses.dataclass(frozen=True)
class Item:
    nodeid: str
    is_long: bool

    def get_closest_marker(self, name):
        return self if self.is_long and name == "long" else None


TESTS = [Item(f"tests/models/test_bert.py::test_shapes[{i}]", i % 10 == 0) for i in range(10_000)]


def test_every_long_test_is_in_one_part_and_the_others_are_in_all():
    taken = [parts.split(TESTS, part, 4)[0] for part in (1, 2, 3, 4)]
    short = [test for test in TESTS if not test.is_long]
    assert [[test for test in part if not test.is_long] for part in taken] == [short] * 4
    long = [test for part in taken for test in part if test.is_long]
    assert len(long) == 1000 and len(set(long)) == 1000
    assert min(len(part) for part in taken) > 9000 + 200


def test_what_is_left_out_is_told():
    taken, left_out = parts.split(TESTS, 2, 3)
    assert sorted(taken + left_out, key=TESTS.index) == TESTS
    assert all(test.is_long for test in left_out)


def test_a_test_stays_in_its_part():
    names = [Item(name, True) for name in "abcd"]
    taken = [[test.nodeid for test in parts.split(names, part, 4)[0]] for part in (1, 2, 3, 4)]
    assert taken == [["d"], ["b"], [], ["a", "c"]]  # CRC-32 of the names, modulo 4


def test_a_part_is_a_number_of_a_number():
    assert parts.parse("2/4") == (2, 4)
    for text in ("", "2", "0/4", "5/4", "1/0", "a/4", "1/4/2"):
        with pytest.raises(ValueError, match="is not K/N"):
            parts.parse(text)
