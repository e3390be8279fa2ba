"""What a schema accepts, and what is said of anything else."""

import pytest

from bert_jax.errors import UserError
from bert_jax.io import json_files

SCHEMA = {
    "name": str,
    "size": range(1, 10),
    "seed?": int,
    "rate": float,
    "on": (bool, None),
    "parts": [{"rows": range(0, 1 << 63)}],
    "labels": {str: [str]},
    "names?": (None, [str]),
}
GOOD = '{"name": "n", "size": 3, "rate": 1, "on": null, "parts": [{"rows": 0}], "labels": {"a": ["b"]}}'


def test_a_sound_file(tmp_path):
    path = tmp_path / "x.json"
    path.write_bytes(b"\xef\xbb\xbf" + GOOD.encode())
    assert json_files.read(path, SCHEMA)["parts"] == [{"rows": 0}]
    for old, new in (
        ("null", "true"),
        ('"size": 3', '"names": null, "size": 9'),
        ('"size"', '"names": ["x"], "size"'),
    ):
        path.write_text(GOOD.replace(old, new))
        json_files.read(path, SCHEMA)


@pytest.mark.parametrize(
    "old, new, message",
    [
        ('"n"', "5", "name is 5, expected text"),
        ('"n"', '{"a": 1}', "name is an object, expected text"),
        ("3", "true", "size is true, expected a whole number from 1 to 9"),
        ("3", "10", "size is 10, expected a whole number from 1 to 9"),
        ("3", "3.0", "size is 3.0, expected a whole number from 1 to 9"),
        ('"size": 3, ', "", "there is no size, expected a whole number from 1 to 9"),
        ('"rate": 1', '"rate": "1"', 'rate is "1", expected a number'),
        ("null", "0", "on is 0, expected true or false or null"),
        ('[{"rows": 0}]', '{"rows": 0}', "parts is an object, expected a list"),
        ('{"rows": 0}', '{"rows": -1}', "parts[0].rows is -1, expected a whole number from 0 to"),
        ('{"rows": 0}', "[]", "parts[0] is a list, expected an object"),
        ('["b"]', "[null]", "labels.a[0] is null, expected text"),
        ('"size": 3', '"size": 3, "names": ["x", 1]', "names[1] is 1, expected text"),
        ('"size": 3', '"size": 3, "names": "x"', 'names is "x", expected null or a list'),
        (
            '"size": 3',
            '"size": 3, "seed": 9223372036854775808',
            "seed is 9223372036854775808, expected a whole number",
        ),
        ('"n"', '"n', "not JSON (line 1"),
        ('"n"', "[" * 100_000 + "]" * 100_000, "nested too deeply"),
        ("3", "3" * 5000, "a number of thousands of digits"),
        ('"n"', '"\ud800"', "not UTF-8 at byte"),
    ],
)
def test_what_is_wrong_is_said_with_file_and_field(tmp_path, old, new, message):
    path = tmp_path / "x.json"
    path.write_bytes(GOOD.replace(old, new, 1).encode("utf-8", "surrogatepass"))
    with pytest.raises(UserError) as caught:
        json_files.read(path, SCHEMA)
    assert str(caught.value).startswith(f"{path}: {message}") and "\n" not in str(caught.value)


def test_of_what_is_no_object(tmp_path):
    path = tmp_path / "x.json"
    path.write_text("[]")
    with pytest.raises(UserError, match="the file is a list, expected an object"):
        json_files.read(path)
    with pytest.raises(UserError, match=r"none\.json: cannot be read \(No such file"):
        json_files.read(tmp_path / "none.json")


def test_the_size_of_a_file_is_bounded(tmp_path, monkeypatch):
    monkeypatch.setattr(json_files, "LARGEST", 1 << 20)
    path = tmp_path / "x.json"
    path.write_bytes(b" " * (1 << 20) + b"{}")
    with pytest.raises(UserError, match="over 1 MiB"):
        json_files.read(path)
