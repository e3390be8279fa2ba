"""TFRecord framing and Example messages, against the definitions of the formats."""

import os
import struct

import google_crc32c
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bert_jax.data import tf_example, tfrecord


def reference_records(content: bytes) -> list[bytes]:
    """record_writer.h, byte by byte, with no code of ours."""

    def unmask(crc):
        rotated = (crc - 0xA282EAD8) & 0xFFFFFFFF
        return ((rotated >> 17) | (rotated << 15)) & 0xFFFFFFFF

    out = []
    while content:
        length, length_crc = struct.unpack("<QI", content[:12])
        payload, (crc,) = content[12 : 12 + length], struct.unpack("<I", content[12 + length : 16 + length])
        assert unmask(length_crc) == google_crc32c.value(content[:8])
        assert unmask(crc) == google_crc32c.value(payload)
        out.append(payload)
        content = content[16 + length :]
    return out


@given(payloads=st.lists(st.binary(max_size=50)))
@settings(deadline=None, max_examples=50)
def test_round_trip(tmp_path_factory, payloads):
    path = str(tmp_path_factory.mktemp("records") / "a.tfrecord")
    records, size = tfrecord.write_records(path, iter(payloads))
    with open(path, "rb") as file:
        content = file.read()
    assert (records, size) == (len(payloads), len(content))
    assert reference_records(content) == payloads
    file = tfrecord.RecordFile(path)
    assert list(file) == payloads
    assert [file[i] for i in reversed(range(len(file)))] == payloads[::-1]
    index = np.fromfile(path + ".index", "<u8")
    assert index.tolist() == np.cumsum([0] + [16 + len(p) for p in payloads])[:-1].tolist()


@pytest.fixture
def records(tmp_path):
    path = str(tmp_path / "a.tfrecord")
    tfrecord.write_records(path, [bytes([i]) * 20 for i in range(10)])
    return path


@pytest.mark.parametrize("spoil", ["missing", "empty", "short", "shifted", "not a multiple of 8"])
def test_bad_index_is_rebuilt_and_kept(records, spoil):
    with open(records + ".index", "rb") as file:
        good = file.read()
    bad = {"empty": b"", "short": good[:-8], "shifted": good[8:], "not a multiple of 8": good[:-3]}.get(spoil)
    os.unlink(records + ".index")
    if bad is not None:
        with open(records + ".index", "wb") as file:
            file.write(bad)
    file = tfrecord.RecordFile(records)
    assert [record[0] for record in file] == list(range(10))
    assert os.path.getsize(records + ".index") == 80


def flip(path, position):
    with open(path, "r+b") as file:
        file.seek(position)
        byte = file.read(1)[0]
        file.seek(position)
        file.write(bytes([byte ^ 0x10]))


@pytest.mark.parametrize("position", range(3 * 36, 4 * 36))
def test_every_flipped_bit_is_found_at_its_record(records, position):
    flip(records, position)
    file = tfrecord.RecordFile(records)
    assert file[2] == bytes([2]) * 20 and file[4] == bytes([4]) * 20
    with pytest.raises(tfrecord.CorruptRecordError, match=r"a.tfrecord at byte 108: ") as caught:
        file[3]
    assert caught.value.offset == 108


@pytest.mark.parametrize("size", [1, 15, 16, 35, 37, 100, 359])
@pytest.mark.parametrize("index", [True, False])
def test_truncation_is_told_with_the_offset(records, size, index):
    os.truncate(records, size)
    if not index:
        os.unlink(records + ".index")
    with pytest.raises(tfrecord.CorruptRecordError, match=f"at byte {size // 36 * 36}: the file ends inside"):
        tfrecord.RecordFile(records)


def test_the_digest_of_a_file_is_that_of_all_its_bytes(tmp_path):
    path = str(tmp_path / "x.tfrecord")
    tfrecord.write_records(path, [bytes(range(256)) * 80_000])  # 20 MB, which are read in parts of 16 MiB
    assert tfrecord.RecordFile(path).digest() == google_crc32c.value((tmp_path / "x.tfrecord").read_bytes())


@pytest.mark.parametrize(
    "read",
    [
        lambda file: file[9],
        lambda file: list(file),
        lambda file: file.digest(),
    ],
    ids=["one", "all", "digest"],
)
@pytest.mark.parametrize("size", [0, 355, 4096 + 20])
def test_a_file_truncated_while_it_is_read_is_an_error(tmp_path, read, size):
    """A memory map of the file would end the process with SIGBUS."""
    path = str(tmp_path / "a.tfrecord")
    tfrecord.write_records(path, [bytes([i]) * 1000 for i in range(10)])
    file = tfrecord.RecordFile(path)
    os.truncate(path, size)
    with pytest.raises(tfrecord.CorruptRecordError, match=r"a\.tfrecord.*the file ends"):
        read(file)


# Of {"a": b"x", "b": [1, 300], "c": [1.0]}: each entry is a name and a feature, which is a list.
ENTRIES = (
    "0a0a 0a0161 1205 0a03 0a01 78",
    "0a0c 0a0162 1207 1a05 0a03 01ac02",
    "0a0d 0a0163 1208 1206 0a04 0000803f",
)
MESSAGE = bytes.fromhex("0a29" + "".join(ENTRIES))


def test_the_bytes_of_an_example():
    assert tf_example.encode({"b": [1, 300], "c": [1.0], "a": b"x"}) == MESSAGE
    found = tf_example.decode(MESSAGE)
    assert list(found["a"].bytes_list.value) == [b"x"] and list(found["b"].int64_list.value) == [1, 300]
    assert list(found["c"].float_list.value) == [1.0]
    with pytest.raises(ValueError, match="pars"):
        tf_example.decode(MESSAGE[:-1])
