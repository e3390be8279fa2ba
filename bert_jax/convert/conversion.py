"""Converts a model from one format to another, verifies the result, and publishes it atomically."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Iterator

import safetensors

from bert_jax.convert import formats, loading, model_card, parity, surgery
from bert_jax.convert.formats.base import Format
from bert_jax.convert.model import Model
from bert_jax.errors import StorageError, UserError, file_error
from bert_jax.io import atomic, checks, files, scratch
from bert_jax.parallel import collective, distributed

# Names of the files and folders of models in conversions, in exports and on the hub.
_OF_MODELS = re.compile(
    r"onnx|checkpoints?|\d+_\w+|\.gitattributes|LICENSE.*|.*\.ckpt.*"
    r"|.*\.(json|txt|md|model|safetensors|bin|h5|msgpack|onnx|onnx[._]data|stablehlo)"
)


def convert(
    source: str,
    output: str,
    to: str,
    *,
    ignore: str = "",
    change: Callable[[Model, str], Model] = lambda model, scratch: model,
    overwrite: bool = False,
    card: Callable[[Model], str] | None = None,
    log: Callable[[str], None] = print,
) -> None:
    """Reads a model of any format and writes it in the format `to`; see `loading.load`.

    Before `output` appears, the written model is read back from the disk. Its parameters must be equal bit
    for bit, and its outputs for random inputs must agree within a tolerance. `change` changes the model
    before it is written, and may write files into the directory that is its second argument. `card` returns
    the model card of the changed model, for a Hugging Face folder.
    """
    target = formats.FORMATS[to]
    check_model_directory(output, source, overwrite, _may_be_replaced)
    kind = loading.detect(loading.local_path(source))
    model = loading.load(source, ignore=ignore, log=log)
    model.check_sentence()
    log(f"read {model.source} as {kind.name}: {model.size}, head {model.head}")
    with written(output) as folder, scratch.directory() as extra:
        model = change(model, extra)
        if model.untied:
            raise UserError(
                f"{source}: the masked LM head has an untied {model.untied}; --head=none skips the head"
            )
        difference = _write(model, folder, target, output, card(model) if card else "")
    log(
        f"wrote {output} as {to}: {model.size}, head {model.head}; read back, every parameter is the same "
        f"and its forward pass differs by {difference:.1e}"
    )
    if warning := target.warning(model):
        log(f"warning: {warning}")


def _write(model: Model, folder: str, target: Format, name: str, card: str) -> float:
    """Writes a model and reads it back; returns the largest difference of its outputs."""
    if target.name == "huggingface":
        model = surgery.without_mask_decoder(model)  # transformers has no such thing
    target.write(model, folder, card)
    again = target.read(folder, log=lambda line: None)  # the source's lines have been logged
    return parity.check_same(f"{name}, read back", model, again)


def push_run(workdir: str, repository: str, *, license: str = "", log: Callable[[str], None] = print) -> str:
    """Uploads the best or newest step of a run as a Hugging Face folder; returns the URL of the model.

    All processes of the run have to call it; process 0 writes and uploads the folder, which is temporary.
    """
    model_card.check_name(repository)
    log = distributed.log_of_primary(log)
    model = loading.load(workdir, log=log)
    target = formats.FORMATS["huggingface"]

    def upload() -> str:
        model.check_sentence()
        with scratch.directory() as folder:
            card = model_card.make(model, workdir, license=license, repository=repository)
            _write(model, folder, target, workdir, card)
            return model_card.push(folder, repository)

    url: str = collective.call_in_primary(upload)
    if warning := target.warning(model):
        log(f"warning: {warning}")
    return url


@contextlib.contextmanager
def written(output: str) -> Iterator[str]:
    """Yields an empty directory for a model, which becomes `output`; see `atomic.replace_directory`."""
    try:
        with atomic.replace_directory(output) as folder:
            yield folder
    except OSError as error:
        message = f"--output={output}: cannot be written ({error.strerror or error})"
        raise file_error(message, error) from error
    except safetensors.SafetensorError as error:
        raise StorageError(f"--output={output}: cannot be written ({error})") from error


def check_model_directory(
    output: str, source: str, overwrite: bool, may_be_replaced: Callable[[str], bool]
) -> None:
    """Raises UserError unless `output` is free, or holds only replaceable local files, and not `source`."""
    checks.check_free(output, overwrite)
    if not (files.is_file(output) or files.names(output)):
        return
    target = os.path.realpath(output)
    holds_source = os.path.commonpath([os.path.realpath(source), target]) == target
    names = (name.split("/") for name in files.walk(output))
    of_models = (each[:1] if each[0] == "checkpoints" else each for each in names)
    are_of_models = all(_OF_MODELS.fullmatch(x) for each in of_models for x in each)
    if files.is_remote(output) or holds_source or not (may_be_replaced(output) and are_of_models):
        raise UserError(
            f"--output={output}: --overwrite replaces only a local model that this command has written, and "
            "not --input"
        )


def _may_be_replaced(output: str) -> bool:
    try:
        kind = formats.find(output)
    except UserError:
        return False
    return kind is not None and kind.may_be_replaced(output)
