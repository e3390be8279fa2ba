"""The flags of commands that read a corpus; docs/corpora.md says what each format is."""

from absl import flags


def define(flag_values: flags.FlagValues) -> None:
    """Defines --input and how it is read."""
    flags.DEFINE_multi_string(
        "input",
        None,
        "Text files: a path, a glob or a URL such as gs://bucket/*; tfds:NAME is a prepared data set. May be "
        "repeated.",
        flag_values=flag_values,
    )
    for name, default, text in (
        (
            "input_format",
            "text",
            "text: one sentence a line, a blank line after each document; wikiextractor: <doc> elements; "
            "wikipedia_xml: a MediaWiki dump; books: one book a file; jsonl: one JSON object a line.",
        ),
        ("text_field", "text", "jsonl and tfds: the field of the text."),
        ("id_field", "", "jsonl and tfds: the field that names the document; default: its place does."),
        ("tfds_data_dir", "", "Where tfds data sets lie. Default: $TFDS_DATA_DIR, or ~/tensorflow_datasets."),
    ):
        flags.DEFINE_string(name, default, text, flag_values=flag_values)
