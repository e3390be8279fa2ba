"""The flags of commands that read a corpus."""

from bert_jax.settings.flags import Define


def add(define: Define) -> None:
    """Defines --input and how it is read."""
    define.strings(
        "input",
        "Text files: a path, a glob or a URL such as gs://bucket/*; tfds:NAME is a prepared data set. May be "
        "repeated.",
        required="'DIR/*', the text to read",
    )
    define.string(
        "input_format",
        "text: one sentence per line, a blank line after each document; paragraphs: one paragraph per line, "
        "a blank line after each document; wikiextractor: <doc> elements; wikipedia_xml: a MediaWiki dump; "
        "books: one book per file; jsonl: one JSON object per line. All but text are split into sentences.",
        "text",
    )
    add_fields(define)


def add_fields(define: Define) -> None:
    """Defines which fields of a record are read, and where data sets are."""
    define.string("text_field", "jsonl and tfds: the field that contains the text.", "text")
    define.string(
        "id_field",
        "jsonl and tfds: the field that identifies the document. Default: its file and its position there.",
        "",
    )
    define.string(
        "tfds_data_dir",
        "Directory of the tfds data sets. Default: $TFDS_DATA_DIR, or ~/tensorflow_datasets.",
        "",
    )
