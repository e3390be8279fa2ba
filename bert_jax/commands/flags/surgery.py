"""The flags of `bert-jax convert` that change the model on its way."""

from __future__ import annotations

import os
from collections.abc import Callable

from absl import flags as absl_flags
from etils import epy

from bert_jax.convert.heads import PRETRAINED
from bert_jax.errors import UserError
from bert_jax.settings.flags import Define

with epy.lazy_imports():
    from bert_jax import convert, tokenization
    from bert_jax.convert import families, surgery, vocabulary
    from bert_jax.io import atomic


_CHANGES = ("vocab", "add_tokens", "pad_vocab_to", "positions", "position_method", "layers", "dtype", "head")


def add(define: Define) -> None:
    """Defines the flags. Without any of them the model stays as it is."""
    define.string(
        "vocab",
        "Another vocabulary for the model, a vocab.txt, NAME.model, tokenizer.json of byte-level BPE, or a "
        "folder with one: tokens that are in both keep their embeddings, a new token gets the mean of those "
        "of its pieces. For an input without a vocabulary: its own one.",
    )
    define.string(
        "add_tokens",
        "File of tokens to add to a WordPiece vocabulary, one per line. They replace [unusedN] first, and "
        "are then appended.",
    )
    define.integer(
        "pad_vocab_to",
        "Pad the rows of the vocabulary to a multiple of this, such as 128, which does not change results; 0 "
        "removes such rows.",
    )
    define.integer("positions", "New number of tokens of the longest sequence.")
    define.choice(
        "position_method",
        ["tile", "interpolate"],
        "How to fill a longer table of positions: by repeating the old one, or by stretching it.",
        "tile",
    )
    absl_flags.DEFINE_list(
        "layers",
        None,
        "Layers to keep, numbered from 0, in this order: 0,2,4,7,9,11. A layer may occur more than once.",
        flag_values=define.values,
    )
    define.choice("dtype", ["float32", "bfloat16", "float16"], "Type of the parameters.")
    define.choice("head", PRETRAINED, "Which heads to keep.")


def check_absent(flags: absl_flags.FlagValues) -> None:
    """Raises a UserError if one of the flags is given, for a format that takes no changes."""
    for name in _CHANGES:
        if flags[name].present:
            raise UserError(
                f"--{name} changes the model, and --to={flags.to} writes updates of the base as it is; "
                f"leave --{name} out, or choose another format"
            )


def apply(
    flags: absl_flags.FlagValues,
    model: convert.Model,
    log: Callable[[str], None],
    vocab_path: str | os.PathLike,
) -> convert.Model:
    """Returns the model with the changes of the flags, which are made in a fixed order.

    Args:
        flags: the flags of `add`.
        model: the model.
        log: called with a line for each change.
        vocab_path: where --add_tokens writes the new vocabulary; its directory exists.
    """
    if flags.vocab and flags.add_tokens:
        raise UserError(
            "--vocab and --add_tokens exclude each other; add the tokens to the file of --vocab, or convert "
            "twice"
        )
    if flags.head and model.generator is not None and flags.head == model.generator.head:
        model = model.generator
        log("network: the generator")
    elif model.generator is not None:
        model = model.replace(generator=None)
        log("network: the discriminator; --head=masked_lm is the generator")
    if flags.vocab and model.tokenizer is None:
        model = model.replace(tokenizer=families.load_tokenizer(flags.vocab, model.config))
        log(f"vocabulary: {flags.vocab}, added to the model")
    elif flags.vocab:
        tokenizer = families.load_tokenizer(flags.vocab, model.config)
        model, report = vocabulary.replace_vocabulary(model, tokenizer)
        log(str(report))
    if flags.add_tokens:
        model = _add_tokens(model, flags.add_tokens, os.fspath(vocab_path), log)
    if flags.head:
        log(f"head: {model.head} -> {flags.head}")
        model = surgery.change_head(model, flags.head)
    if flags.layers is not None:
        before = model.config.num_hidden_layers
        layers = _layer_numbers(flags.layers)
        model = surgery.select_layers(model, layers)
        log(f"layers: {before} -> {len(layers)} ({', '.join(map(str, layers))})")
    if flags.positions is not None:
        before = model.config.max_seq_length
        model = surgery.resize_positions(model, flags.positions, flags.position_method)
        how = flags.position_method if flags.positions > before else "the first ones"
        if surgery.POSITIONS not in model.params:
            how = "the model has no position table"
        log(f"positions: {before} -> {flags.positions} ({how})")
    if flags.pad_vocab_to is not None:
        model = _pad(model, flags.pad_vocab_to, log)
    if flags.dtype:
        model = surgery.cast(model, flags.dtype)
        log(f"dtype: {flags.dtype}")
    return model


def _add_tokens(
    model: convert.Model, path: str, vocab_path: str, log: Callable[[str], None]
) -> convert.Model:
    old = model.tokenizer
    if old is None:
        raise UserError(
            f"--add_tokens={path}: {model.source or 'the model'} has no vocabulary to add to; expected a "
            "vocab.txt beside it"
        )
    tokens = vocabulary.add_tokens(old, vocabulary.read_tokens(path))
    atomic.write_file(vocab_path, "".join(f"{token}\n" for token in tokens).encode())
    # These options are those of the old tokenizer: added words must not change what is detected.
    tokenizer = tokenization.restore(vocab_path, old.settings() | {"digest": ""})
    tokenizer.added_tokens = old.added_tokens
    model, report = vocabulary.replace_vocabulary(model, tokenizer)
    log(str(report))
    return model


def _layer_numbers(texts: list[str]) -> list[int]:
    try:
        return [int(text) for text in texts]
    except ValueError:
        raise UserError(
            f"--layers={','.join(texts)} is not a list of layers; expected numbers from 0, such as "
            "0,2,4,7,9,11"
        ) from None


def _pad(model: convert.Model, multiple: int, log: Callable[[str], None]) -> convert.Model:
    before = model.config.vocab_size
    if multiple < 0:
        raise UserError(
            f"--pad_vocab_to={multiple}: expected a multiple such as 128, or 0 to remove the padding"
        )
    if multiple:
        model = surgery.pad_vocabulary(model, multiple)
        log(f"rows of the vocabulary: {before:,} -> {model.config.vocab_size:,}")
        return model
    cut = surgery.unpad_vocabulary(model)
    learned = not surgery.rows_are_padding(model, cut.config.vocab_size)
    log(
        f"rows of the vocabulary: {before:,} -> {cut.config.vocab_size:,}"
        + (" (some are learned and not padding: masked LM probabilities change)" if learned else "")
    )
    return cut
