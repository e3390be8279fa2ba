"""The Python API: loads a model of any format, fine-tunes and pre-trains."""

from __future__ import annotations

import dataclasses
import functools
import io
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import ml_collections
import numpy as np
from etils import epy

from bert_jax import convert
from bert_jax.checkpoint.leaves import nest
from bert_jax.convert.sentences import SentenceVectors, unit_length
from bert_jax.errors import UserError
from bert_jax.inference import engine
from bert_jax.inference.embedding import Embedder, check_reads_cls, pool
from bert_jax.inference.engine import Row, Text
from bert_jax.io import atomic, files
from bert_jax.kernels import platform
from bert_jax.models import Pooler
from bert_jax.models.assembled import AssembledModel
from bert_jax.models.config import EncoderConfig
from bert_jax.models.heads.pooling import POOLINGS
from bert_jax.models.row_inputs import INPUTS, row_inputs
from bert_jax.settings import config_fields, config_files
from bert_jax.tasks.rows import batches
from bert_jax.tokenization import Tokenizer

with epy.lazy_imports():  # only training needs these
    import pyarrow
    from pyarrow import parquet

    from bert_jax.convert import conversion
    from bert_jax.inference import predictor as predictors
    from bert_jax.parallel import compiler_options
    from bert_jax.runs import finetune as finetune_run
    from bert_jax.runs import pretrain as pretrain_run
    from bert_jax.tasks import inferred
    from bert_jax.training import metrics


@dataclasses.dataclass(frozen=True)
class Encoding:
    """The encodings of B texts; the longest has L tokens.

    Attributes:
        tokens: int32 [B, L], token ids with [CLS] and [SEP], padded with [PAD].
        lengths: int32 [B], the number of tokens of each text.
        states: float32 [B, L, H], the hidden states of the last layer; 0 at padding.
        pooled: float32 [B, H], one vector per text.
    """

    tokens: np.ndarray
    lengths: np.ndarray
    states: np.ndarray
    pooled: np.ndarray


class LoadedModel:
    """A model in memory.

    Attributes:
        module: the Flax module with every part that the checkpoint has; see `AssembledModel`.
        params: the parameters, a nested dict of float32 arrays that cannot be written to: on a CPU, `encode`
            may compute with the same memory.
        config: the architecture, and how it is computed on this platform.
        tokenizer: the tokenizer with the model's vocabulary.
        labels: the class names of a fine-tuned model; None for other models.
    """

    def __init__(
        self,
        model: convert.Model,
        dtype: str = "auto",
        log: Callable[[str], None] = print,
    ):
        self.tokenizer: Tokenizer = model.require_tokenizer()
        # The generator and the updates, which `encode` does not use, are not kept in memory.
        self._model = model.replace(generator=None, adapter=None)
        self._sentence = model.sentence or SentenceVectors()
        self._embedder = Embedder(model, pooling="none", dtype=dtype, log=log)
        self.config: EncoderConfig = model.config.for_inference(platform.target(), dtype)
        self.module: AssembledModel = model.module.clone(config=self.config)
        self.params: dict[str, Any] = nest({name: _read_only(x) for name, x in model.params.items()})
        self.labels = model.labels

    def __repr__(self) -> str:
        model = self._model
        return f"LoadedModel({model.source!r}: {model.family.name}, {model.size})"

    def encode(self, texts: Iterable[Text], pooling: str = "") -> Encoding:
        """Returns the tokens and the last hidden states of texts, or of pairs of texts.

        Texts are truncated at the training length of a model for sentence embeddings, and otherwise at the
        number of positions. A sentence embedding model may also scale `pooled` to length 1. Both hold for
        every pooling.

        Args:
            texts: each is a str, or a tuple (first, second).
            pooling: how `pooled` is computed: "mean" or "max" over the tokens of a text; "cls" or "last", the
                hidden state at the first or last token; "pooler", the state at [CLS] after the pre-trained
                dense layer and tanh. "" for the pooling of a sentence encoder, and "mean" for other models.

        Raises:
            UserError: the model does not support this pooling, or `texts` is not a list of texts and pairs.
        """
        if not pooling:
            self._model.check_sentence()
        pooling = pooling or self._sentence.pooling
        valid = [
            name for name in POOLINGS if name != "none" and (name != "pooler" or "pooler" in self.params)
        ]
        if pooling not in valid:
            raise UserError(f"pooling={pooling!r}: expected one of {', '.join(valid)}")
        check_reads_cls(f"pooling={pooling!r}", pooling, self.config, self._model.source)
        rows = list(self._embedder.stream(texts))
        batch = self._padded(rows)
        tokens, lengths = batch["input_ids"], batch["lengths"]
        states = np.zeros((*tokens.shape, self.config.hidden_size), np.float32)
        for row, of_text in zip(rows, states, strict=True):
            of_text[: len(row.token_ids)] = row.values[:, 0]
        pooled = self._pool(states, lengths, pooling)
        if self._sentence.normalize:
            pooled = unit_length(pooled)
        return Encoding(tokens, lengths, states, pooled)

    # Not dict[str, np.ndarray], because mypy would not accept `module.init(key, **inputs)`.
    def inputs(self, texts: Iterable[Text]) -> dict[str, Any]:
        """Returns the inputs of `module` for the texts of `encode`: int32 [B, L] arrays by argument name."""
        batch = jax.device_put(self._padded(list(self._embedder.rows(texts))))
        arrays = jax.device_get(_row_inputs(**batch, types=self.tokenizer.layout.types))
        return {name: arrays[name] for name in INPUTS}

    def _padded(self, rows: Sequence[Row]) -> dict[str, np.ndarray]:
        data = engine.encoded(rows, self.tokenizer.pad_id)
        batch = batches.make_batch(data, np.arange(len(data)), (data.max_seq_length,))
        return {name: batch[name] for name in ("input_ids", "lengths", "first_lengths")}

    def _pool(self, states: np.ndarray, lengths: np.ndarray, pooling: str) -> np.ndarray:
        if not len(states):
            return np.zeros((0, self.config.hidden_size), np.float32)
        pooler = self.params["pooler"] if pooling == "pooler" else None
        arrays = jax.device_put((states, lengths, pooler))
        return np.array(jax.device_get(_pooled(*arrays, pooling=pooling, config=self.config)))


# Compiled, with explicit transfers of arrays, so that both work under `jax.transfer_guard("disallow")`.
_row_inputs = jax.jit(row_inputs, static_argnames="types")


@functools.partial(jax.jit, static_argnames=("pooling", "config"))
def _pooled(states: jax.Array, lengths: jax.Array, pooler: Any, *, pooling: str, config: EncoderConfig):
    real = (jnp.arange(states.shape[1]) < lengths[:, None]).astype(jnp.int32)
    vectors: Any = pool(states, real, pooling)
    if pooler is not None:
        vectors = Pooler(config).apply({"params": pooler}, vectors)
    return vectors.astype(jnp.float32)


def _read_only(array: np.ndarray) -> np.ndarray:
    view = array.view()
    view.setflags(write=False)
    return view


def load(path: files.PathLike, *, dtype: str = "auto", log: Callable[[str], None] = print) -> LoadedModel:
    """Loads the model of a checkpoint, with its parameters and its tokenizer.

    Args:
        path: the same as for `--model`: a work directory or one of its checkpoints, a Hugging Face or PEFT
            folder, or the prefix of a TF1 checkpoint; a local path or a URL.
        dtype: the dtype of the computation: "float32", "bfloat16", or "auto", which depends on the platform.
        log: called with one line of text for each notice.

    Raises:
        UserError: there is no checkpoint, it is damaged, or it has no vocabulary.
    """
    return LoadedModel(convert.load(path, log=log), dtype, log)


# Training


@dataclasses.dataclass(frozen=True)
class Run:
    """A run that `finetune` or `pretrain` trained, or resumed, to its end.

    Attributes:
        workdir: the work directory, which every command takes.
        step: the step of its best checkpoint; the last step without an evaluation file.
        scores: {metric: value} of that checkpoint on the evaluation file; {} without one.
    """

    workdir: str
    step: int
    scores: Mapping[str, float]

    @property
    def history(self) -> list[dict[str, Any]]:
        """The lines of metrics.jsonl: {"step": 20, "kind": "train" or "eval", METRIC: value, ...}."""
        return metrics.read_metrics(self.workdir)

    def predictor(self, **options: Any) -> predictors.Predictor:
        """Returns a predictor with the model of a fine-tuning run; see `Predictor` for the options."""
        return predictors.Predictor(self.workdir, **options)

    def push_to(self, name: str, *, license: str = "", log: Callable[[str], None] = print) -> str:
        """Uploads the model to the Hugging Face hub as USER/NAME and returns its URL.

        Raises:
            UserError: the name is not valid, the model cannot be converted, or the upload failed.
        """
        return conversion.push_run(self.workdir, name, license=license, log=log)


def finetune(
    config: str = "",
    workdir: files.PathLike = "",
    *,
    train: Any = None,
    eval: Any = None,  # as the field of the configuration
    log: Callable[[str], None] = print,
    **fields: Any,
) -> Run:
    """Fine-tunes a model, or resumes, as `bert-jax finetune` does.

        run = bert_jax.finetune(workdir="runs/reviews", init_from="org/name",
                                train=[{"review": "good", "stars": "5"}, ...], text_a="review", label="stars")

    Args:
        config: an installed configuration or a path, as `--config`. By default, it is inferred from `train`
            and logged; the columns may have the usual names, such as `text` and `label`.
        workdir: the work directory. A second call with the same arguments resumes.
        train: the rows to train on: a path, or a list of dicts, a pandas DataFrame, a pyarrow Table or a
            `datasets.Dataset`, which is written to the work directory as a Parquet file.
        eval: the rows to evaluate on, like `train`.
        log: called with lines of progress.
        **fields: values of fields of the configuration, by their dotted names (in a dict with `**`) or by the
            last part of a name that only one field has, such as `learning_rate`.

    Raises:
        UserError: a field or a file is not valid.
        TypeError: the value of a field has another type.
    """
    if not os.fspath(workdir):
        raise UserError("finetune needs workdir, the directory of the run")
    directory = os.fspath(workdir)
    paths = {
        f"data.{name}": _file_of(rows, os.path.join(directory, "data", f"{name}.parquet"))
        for name, rows in (("train", train), ("eval", eval))
        if rows is not None
    }
    if not config:
        text_a, text_b, label = (
            fields.get(name, fields.get(f"data.{name}", "")) for name in ("text_a", "text_b", "label")
        )
        source = paths.get("data.train") or fields.get("data.train", "")
        found = inferred.infer(source, list(filter(None, (text_a, text_b))), label)
        log(str(found))
        config, fields = found.config, {**found.fields, **fields}
    loaded, explicit = _configured(config, "finetune", fields)
    loaded.update_from_flattened_dict(paths)
    compiler_options.enable_compilation_cache(directory)
    best = finetune_run.finetune(loaded.lock(), directory, log, explicit=explicit)
    return Run(directory, best["step"], best["scores"])


def pretrain(
    config: str,
    workdir: files.PathLike,
    *,
    data: str = "",
    log: Callable[[str], None] = print,
    **fields: Any,
) -> Run:
    """Pre-trains a model, or resumes, as `bert-jax pretrain` does.

    Args:
        config: an installed configuration or a path, such as "pretrain/mini".
        workdir: the work directory. A second call with the same arguments resumes.
        data: the directory of the records (`data.dir`).
        log: see `finetune`.
        **fields: see `finetune`.

    Raises:
        UserError: a field is not valid, or the records are missing or damaged.
    """
    loaded, explicit = _configured(config, "pretrain", fields)
    if data:
        loaded.data.dir = data
    directory = os.fspath(workdir)
    compiler_options.enable_compilation_cache(directory)
    state = pretrain_run.pretrain(loaded.lock(), directory, log=log, explicit=explicit)
    return Run(directory, int(state.step), {})


def _configured(
    name: str, command: str, values: Mapping[str, Any]
) -> tuple[ml_collections.ConfigDict, list[str]]:
    """Returns a configuration with some values, and the fields of `model` that they set."""
    config = config_files.load(name, command)
    known = [field for field, _ in config_fields.flatten(config)]
    named = {}
    for given, value in values.items():
        matching = [field for field in known if field == given] or [
            field for field in known if field.endswith(f".{given}")
        ]
        if len(matching) != 1:
            expected = " or ".join(matching) or f"a field of {name}"
            raise UserError(f"{given}={value!r:.60}: expected {expected}")
        named[matching[0]] = value
    config.update_from_flattened_dict(named)
    return config, [each.removeprefix("model.") for each in named if each.startswith("model.")]


def _file_of(rows: Any, path: str) -> str:
    """Returns the path of rows: the given path, or a Parquet file, written unless it has these rows."""
    if isinstance(rows, str | os.PathLike):
        return os.fspath(rows)
    if hasattr(rows, "to_parquet") and hasattr(rows, "features"):  # datasets.Dataset, with names of classes
        rows = rows.with_format("arrow")[:].replace_schema_metadata(rows.features.arrow_schema.metadata)
    elif hasattr(rows, "iloc"):
        rows = pyarrow.Table.from_pandas(rows, preserve_index=False)
    elif not isinstance(rows, pyarrow.Table):
        rows = list(rows)
        # `from_pylist` would use only the columns of the first row.
        names = dict.fromkeys(name for row in rows for name in row)
        rows = pyarrow.table({name: [row.get(name) for row in rows] for name in names})
    buffer = io.BytesIO()
    parquet.write_table(rows, buffer)
    if not files.exists(path) or files.read(path) != buffer.getvalue():
        files.make_directory(os.path.dirname(path))
        atomic.write_file(path, buffer.getvalue())
    return path
