"""Converts a model from one format to another, verifies the result, and publishes it atomically."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import safetensors

from bert_jax.convert import formats, loading, parity
from bert_jax.convert.model import Model
from bert_jax.errors import StorageError, UserError, file_error
from bert_jax.io import atomic, checks, files, scratch


def convert(
    source: str,
    output: str,
    to: str,
    *,
    ignore: str = "",
    change: Callable[[Model, str], Model] = lambda model, scratch: model,
    overwrite: bool = False,
    log: Callable[[str], None] = print,
    **options: Any,
) -> Model:
    """Reads a model of any format and writes it in the format `to`.

    Before `output` appears, the written model is read back from the disk. Its parameters must be equal bit
    for bit, and its outputs for random inputs must agree within a tolerance.

    Args:
        source: see `loading.load`.
        output: a directory, local or a URL.
        to: the name of a registered format.
        ignore: see `loading.load`.
        change: a change to the model before it is written; it may write files into the directory that is its
            second argument.
        overwrite: whether an existing checkpoint at `output` is replaced, once the new one is complete.
        log: called with one line of progress.
        options: further arguments of the format's `write`, such as `card` and `max_shard_bytes`. A value that
            is a function is called with the model.

    Returns:
        The model that was written.

    Raises:
        UserError: the user made a mistake, or the conversion is not exact.
        StorageError: the output cannot be written.
    """
    target = formats.get(to)
    _check_output(output, source, overwrite)
    kind = loading.detect(source)
    model = kind.read(source, ignore=ignore, log=log)
    log(f"read {model.source} as {kind.name}: {_describe(model)}")
    remote = files.is_remote(output)
    try:
        if not remote:
            files.make_directory(files.parent(output))
        with scratch.directory(None if remote else files.parent(output)) as temporary:
            folder, extra = os.path.join(temporary, "out"), os.path.join(temporary, "extra")
            os.mkdir(folder)
            os.mkdir(extra)
            model = change(model, extra)
            given = {name: value(model) if callable(value) else value for name, value in options.items()}
            target.write(model, folder, **given)
            difference = parity.check_same(f"{output}, read back", model, target.read(folder, log=log))
            if remote:
                atomic.copy_directory(folder, output)
            else:
                if os.path.isdir(output):
                    os.rename(output, os.path.join(temporary, "replaced"))
                os.rename(folder, output)
    except OSError as error:
        message = f"--output={output}: cannot be written ({error.strerror or error}); nothing was left there"
        raise file_error(message, error) from error
    except safetensors.SafetensorError as error:
        message = f"--output={output}: cannot be written ({error}); nothing was left there"
        raise StorageError(message) from error
    log(
        f"wrote {output} as {to}: {_describe(model)}; read back, every parameter is the same and its forward "
        f"pass differs by {difference:.1e}"
    )
    if warning := target.warning(model):
        log(f"warning: {warning}")
    return model


def _check_output(output: str, source: str, overwrite: bool) -> None:
    checks.check_free(output, overwrite)
    if not (files.is_file(output) or files.names(output)):
        return
    if files.is_remote(output):
        raise UserError(f"--output={output}: a directory in an object store is not replaced; choose another")
    target = os.path.realpath(output)
    if os.path.commonpath([os.path.realpath(source), target]) == target:
        raise UserError(f"--output={output} is, or holds, the --input; choose another")
    try:
        kind = formats.find(output)
    except UserError:
        kind = None
    if kind is None or not kind.may_be_replaced(output):
        raise UserError(
            f"--output={output}: --overwrite replaces what convert wrote, and this is something else; choose "
            "another"
        )


def _describe(model: Model) -> str:
    count = sum(array.size for array in model.params.values())
    config = model.config
    size = f"{config.num_hidden_layers} layers of {config.hidden_size}, {count:,} parameters"
    head = "no head" if model.head == "none" else f"head {model.head}"
    return f"{size}, {head}" + (f" of {len(model.labels)} labels" if model.labels else "")
