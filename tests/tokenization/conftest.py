"""Real text for the tokenizers."""

import tarfile

import pytest


@pytest.fixture(scope="session")
def wikipedia_lines(shared_data):
    """A function from a number (None: all of the first 12 files) to that many lines of English Wikipedia."""

    def lines(number):
        found = []
        with tarfile.open(shared_data / "wikipedia-en.tar.xz") as archive:
            for count, member in enumerate(m for m in archive if m.isfile()):
                if count >= 12:
                    break
                text = archive.extractfile(member).read().decode("utf-8")
                found += [line for line in text.split("\n") if line and not line.startswith("<")]
                if number is not None and len(found) >= number:
                    return found[:number]
        return found

    return lines
