"""Options of commands: dataclasses whose fields say how each is given as a flag."""

from __future__ import annotations

import dataclasses
from typing import Any

from data_pipelines import readers

REQUIRED = dataclasses.MISSING  # the default of a field that has to be given


def flag(default: Any, text: str, **metadata: Any) -> Any:
    """Returns a dataclass field that a command offers as a flag; see `Define.options` of bert_jax.

    Args:
        default: the default, or `REQUIRED`.
        text: the help text.
        **metadata: `choices`, the valid values; `required`, what has to be given, for the message to a user
            who did not give it.
    """
    return dataclasses.field(default=default, metadata={"flag": text, **metadata})


@dataclasses.dataclass(frozen=True, kw_only=True)
class CorpusOptions:
    """The options of commands that read a corpus; see `readers.list_inputs`."""

    input: tuple[str, ...] = flag(
        REQUIRED,
        "Text files: a path, a glob or a URL such as gs://bucket/*; tfds:NAME is a prepared data set. May be "
        "repeated; commas separate several, unless a file has the comma in its name.",
        required="'DIR/*', the text to read",
    )
    input_format: str = flag(
        readers.AUTO,
        "auto: the format of the suffix, .txt (text), .jsonl, .ndjson, .json, .csv, .tsv or .xml "
        "(wikipedia_xml); text: one sentence per line, a blank line after each document; paragraphs: one "
        "paragraph per line, a blank line after each document; wikiextractor: <doc> elements; wikipedia_xml: "
        "a MediaWiki dump; "
        "books: one book per file; jsonl: one JSON object per line; csv: a table, or for .tsv one with tabs. "
        "All but text are split into sentences. Parquet and Arrow files are read whatever it says.",
    )
    text_field: str = flag("text", "jsonl, csv, Parquet, Arrow and tfds: the field that contains the text.")
    id_field: str = flag(
        "",
        "jsonl, csv, Parquet, Arrow and tfds: the field that identifies the document; those with the same "
        "value are held out together. Default: its file and its position there.",
    )
    tfds_data_dir: str = flag(
        "", "Directory of the tfds data sets. Default: $TFDS_DATA_DIR, or ~/tensorflow_datasets."
    )

    @property
    def fields(self) -> readers.Fields:
        """The fields to read of text that has fields."""
        return readers.Fields(self.text_field, self.id_field)
