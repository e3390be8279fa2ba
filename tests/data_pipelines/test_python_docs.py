"""The corpus of docstrings in CPython contains only English prose."""

from data_pipelines import python_docs

DOCSTRING = """
Open a file(s) and *return* a stream.

open(path, mode='r') -> stream

The ``mode`` is a string that says how the file
is opened. See :func:`~io.open` for `more about it`_ [1]_.

>>> open("name")
<stream>
This is output of the example above.

Args:
  path: A path-like object that names the file.
  mode (str): How to open the file, by default for reading text.

Notes
-----
* The first item is a sentence of its own
  over two lines.
* Items without an end are no sentences

   x = open(name)[0].read() + other.value

Some code::

    for line in file: print(line, end='')

+-----+-----+
| a   | b   |
+-----+-----+

"Dr. Smith wrote it." It works in Python 3, i.e. today. Short one.
"""


def test_prose_of_a_docstring():
    assert python_docs.prose(DOCSTRING) == [
        "Open a file(s) and return a stream.",
        "The mode is a string that says how the file is opened.",
        "See io.open for more about it.",
        "The first item is a sentence of its own over two lines.",
        '"Dr. Smith wrote it."',
        "It works in Python 3, i.e. today.",
    ]
