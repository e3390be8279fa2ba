"""Keeps the files that a build writes, and its vocabulary, apart from the text that it reads."""

from __future__ import annotations

import os
from collections.abc import Sequence

from bert_jax import tokenization
from bert_jax.data import manifests, tfrecord
from bert_jax.errors import UserError
from data_pipelines import cleaning, readers
from data_pipelines.output_lock import SETTINGS, UNFINISHED
from data_pipelines.settings import Options
from data_pipelines.stages import shards

_SHARD = shards.file_name("train", 0, 1)
# Files of each sort that a build writes to its output directory.
_WRITTEN = (
    *(kind.file for kind in tokenization.KINDS.values()),
    *(manifests.FILE, cleaning.REPORT, _SHARD, _SHARD + tfrecord.INDEX_SUFFIX, f"{UNFINISHED}/{SETTINGS}"),
)


def check(options: Options) -> None:
    """Raises UserError if an input finds what the build writes, which would be text of the next build."""
    output = options.output
    found = readers.pattern_for(output, options.input, _WRITTEN)
    if not found:
        return
    pattern, name = found
    if not name:
        raise UserError(
            f"--output={output} lies in --input={pattern}, whose files are all read as text; choose a "
            "directory outside of it"
        )
    raise UserError(
        f"--input={pattern} also finds {name} in --output={output}, where a build writes it; choose a "
        "directory outside of the folders of the text, or a narrower pattern"
    )


def check_text(options: Options, paths: Sequence[str]) -> None:
    """Raises UserError if the vocabulary is one of the input files."""
    names = ("", *tokenization.FILE_NAMES)  # of a file, or in a folder
    own = {readers.identity(os.path.join(options.vocab, name) if name else options.vocab) for name in names}
    for path in paths:
        if readers.identity(path) in own:
            raise UserError(
                f"{path} is a file of --input and of --vocab={options.vocab}, and a vocabulary is no text; "
                "move it out of the folder of the text, or give a pattern that does not find it"
            )
