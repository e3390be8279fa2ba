"""Parts of the tests marked `long`, of which `.ci/run` takes one."""

import re
import zlib


def parse(text: str) -> tuple[int, int]:
    """Returns (part, number of parts) of a text such as `2/4`. ValueError: it is not of that form."""
    match = re.fullmatch(r"([1-9]\d*)/([1-9]\d*)", text)
    if not match or int(match[1]) > int(match[2]):
        raise ValueError(f"{text!r} is not K/N, part K of N, such as 1/4")
    return int(match[1]), int(match[2])


def split(items: list, part: int, parts: int) -> tuple[list, list]:
    """Returns (the tests of a part and all that are not long, the long tests of other parts), in their order.

    The name of a test alone decides on its part, so that a test is in the same one whatever others there are.
    """

    def is_taken(item):
        return not item.get_closest_marker("long") or zlib.crc32(item.nodeid.encode()) % parts == part - 1

    return [item for item in items if is_taken(item)], [item for item in items if not is_taken(item)]
