"""Reads event files as TensorBoard shows them."""

import struct

from tensorboardX.proto import event_pb2


def read(directory):
    """[(tag, step, number)] in the order of the files, without what a resumed run hides."""
    found = []
    for path in sorted(directory.iterdir()):
        for event in map(event_pb2.Event.FromString, _records(path.read_bytes())):
            if event.session_log.status == event_pb2.SessionLog.START:
                found = [each for each in found if each[1] < event.step]
            found += [(value.tag, event.step, value.simple_value) for value in event.summary.value]
    return found


def steps(directory, tag):
    """The steps of a tag, in the order of the files."""
    return [step for name, step, _ in read(directory) if name == tag]


def _records(content):
    while content:
        (length,) = struct.unpack("<Q", content[:8])  # and 4 bytes of a checksum, after the record too
        yield content[12 : 12 + length]
        content = content[16 + length :]
