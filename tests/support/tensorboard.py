"""Reads event files as TensorBoard shows them."""

import base64
import struct

from tensorboardX.proto import event_pb2

# One pixel.
PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)


def read(directory):
    """[(tag, step, value)] in the order of the files, without what a resumed run hides.

    A value is a number, a text or the content of a PNG file.
    """
    found = []
    for path in sorted(directory.iterdir()):
        for event in map(event_pb2.Event.FromString, _records(path.read_bytes())):
            if event.session_log.status == event_pb2.SessionLog.START:
                found = [each for each in found if each[1] < event.step]
            found += [(value.tag, event.step, _content(value)) for value in event.summary.value]
    return found


def steps(directory, tag):
    """The steps of a tag, in the order of the files."""
    return [step for name, step, _ in read(directory) if name == tag]


def _records(content):
    while content:
        (length,) = struct.unpack("<Q", content[:8])  # and 4 bytes of a checksum, after the record too
        yield content[12 : 12 + length]
        content = content[16 + length :]


def _content(value):
    if value.HasField("image"):
        assert value.image.width > 0 and value.image.height > 0
        return value.image.encoded_image_string
    if value.HasField("tensor"):
        assert value.metadata.plugin_data.plugin_name == "text"
        (text,) = value.tensor.string_val
        return text.decode()
    return value.simple_value
