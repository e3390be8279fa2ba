"""One model from one format to another, checked on the way, and published whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Callable

import safetensors

from bert_jax.convert import loading, param_mapping, parity
from bert_jax.convert.formats import huggingface, huggingface_export, tensorflow1, work_directory
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
    card: Callable[[Model], str] = lambda model: "",
    max_shard_bytes: int = huggingface_export.DEFAULT_SHARD_BYTES,
    overwrite: bool = False,
    log: Callable[[str], None] = print,
) -> Model:
    """Reads a model of any kind and writes it as the kind `to`.

    Twice the forward pass is computed on random inputs: what is read computes what the source's own tensors
    do, and what is written, read back from the disk, what was to be written. Only then does `output` appear.

    Args:
        source: see `loading.load`.
        output: a directory; local or a URL.
        to: one of `loading.KINDS`.
        ignore: see `loading.load`.
        change: what is done to the model in between; it may write files into the directory it is given.
        card: the text of the model card of a Hugging Face folder.
        max_shard_bytes: see `huggingface_export.write`.
        overwrite: whether a checkpoint that is at `output` already is replaced, once the new one is whole.

    Returns:
        The model that was written.

    Raises:
        UserError: a user's mistake, or a conversion that is not exact.
    """
    _check_output(output, source, overwrite)
    kind = loading.detect(source)
    if kind == loading.NATIVE:
        model = work_directory.read(source, log=log)
    else:
        reader = huggingface if kind == param_mapping.HUGGINGFACE else tensorflow1
        model, tensors = reader.read(source, ignore=ignore)
        difference = parity.compare(
            source, parity.file_outputs(tensors, model.config, kind), parity.flax_outputs(model)
        )
        log(f"read as {kind}: {_describe(model)}; its forward pass differs by {difference:.1e} here")
        del tensors
    if kind == loading.NATIVE:
        log(f"read {model.source}: {_describe(model)}")
    remote = files.is_remote(output)
    try:
        if not remote:
            files.make_directory(files.parent(output))
        with scratch.directory(None if remote else files.parent(output)) as temporary:
            folder, extra = os.path.join(temporary, "out"), os.path.join(temporary, "extra")
            os.mkdir(folder)
            os.mkdir(extra)
            model = change(model, extra)
            _write(model, folder, to, card(model) if to == param_mapping.HUGGINGFACE else "", max_shard_bytes)
            difference = parity.compare(
                f"{output}, read back", _written_outputs(folder, to), parity.flax_outputs(model)
            )
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
        f"wrote {output} as {to}: {_describe(model)}; read back, its forward pass differs by {difference:.1e}"
    )
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
        kind = loading.detect(output)
    except UserError:
        kind = ""
    if not kind or (kind == loading.NATIVE and not work_directory.is_converted(output)):
        raise UserError(
            f"--output={output}: --overwrite replaces what convert wrote, and this is something else; choose "
            "another"
        )


def _write(model: Model, folder: str, to: str, card: str, max_shard_bytes: int) -> None:
    if to == param_mapping.HUGGINGFACE:
        huggingface_export.write(model, folder, card=card, max_shard_bytes=max_shard_bytes)
    elif to == param_mapping.TENSORFLOW:
        tensorflow1.write(model, folder)
    else:
        work_directory.write(model, folder)


def _written_outputs(folder: str, to: str):
    if to == loading.NATIVE:
        return parity.flax_outputs(work_directory.read(folder))
    model, tensors = (huggingface if to == param_mapping.HUGGINGFACE else tensorflow1).read(folder)
    return parity.file_outputs(tensors, model.config, to)


def _describe(model: Model) -> str:
    count = sum(array.size for array in model.params.values())
    config = model.config
    size = f"{config.num_hidden_layers} layers of {config.hidden_size}, {count:,} parameters"
    head = "no head" if model.head == "none" else f"head {model.head}"
    return f"{size}, {head}" + (f" of {len(model.labels)} labels" if model.labels else "")
