"""The flags of commands that read a corpus."""

from collections.abc import Mapping, Sequence

from absl import flags

from bert_jax.errors import UserError


def define(flag_values: flags.FlagValues) -> None:
    """Defines --input and how it is read."""
    flags.DEFINE_multi_string(
        "input",
        None,
        "Text files: a path, a glob or a URL such as gs://bucket/*; tfds:NAME is a prepared data set. May be "
        "repeated.",
        flag_values=flag_values,
    )
    flags.DEFINE_string(
        "input_format",
        "text",
        "text: one sentence per line, a blank line after each document; paragraphs: one paragraph per line, "
        "a blank line after each document; wikiextractor: <doc> elements; wikipedia_xml: a MediaWiki dump; "
        "books: one book per file; jsonl: one JSON object per line. All but text are split into sentences.",
        flag_values=flag_values,
    )
    define_fields(flag_values)


def define_fields(flag_values: flags.FlagValues) -> None:
    """Defines what is read of records."""
    for name, default, text in (
        ("text_field", "text", "jsonl and tfds: the field of the text."),
        ("id_field", "", "jsonl and tfds: the field that names the document; default: its place does."),
        ("tfds_data_dir", "", "Where tfds data sets lie. Default: $TFDS_DATA_DIR, or ~/tensorflow_datasets."),
    ):
        flags.DEFINE_string(name, default, text, flag_values=flag_values)


def check(command: str, values: flags.FlagValues, args: Sequence[str], needed: Mapping[str, str]) -> None:
    """Raises UserError where there are arguments, or a needed flag ({name: what it gives}) is not given."""
    if args:
        raise UserError(
            f"{command} takes no arguments besides its flags, but was given {args[0]!r}; quote globs, as "
            "--input='DIR/*'"
        )
    for name, what in needed.items():
        if not values[name].value:
            raise UserError(
                f"{command} needs {what}: give --{name}=...; bert-jax {command} --help shows the flags"
            )
