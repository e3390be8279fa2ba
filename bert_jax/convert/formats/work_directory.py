"""Reads complete models from the work directories of runs, and writes them as one step of parameters."""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Callable, Mapping
from typing import Any

import jax

from bert_jax import checkpoint
from bert_jax.checkpoint.leaves import flatten, nest
from bert_jax.convert import families
from bert_jax.convert.formats.base import Format
from bert_jax.convert.heads import head_of
from bert_jax.convert.model import LowRankAdapter, Model, params_of_head
from bert_jax.convert.sentences import PairScores, SentenceVectors
from bert_jax.errors import UserError
from bert_jax.io import files, json_files
from bert_jax.models import config as bert_config
from bert_jax.models.heads.structures import LSTM, TOKEN_VECTORS
from bert_jax.objectives.adapters import assemble
from bert_jax.objectives.distillation import DISTILLATION
from bert_jax.objectives.embedding.denoising import DECODER
from bert_jax.objectives.replaced_tokens import GENERATOR, generator_config, generator_params
from bert_jax.tokenization import Tokenizer
from bert_jax.workdir import run_directory

# Parameters of heads that no other program has: BiLSTM and late interaction.
_ONLY_OF_RUNS = re.compile(rf"({LSTM}|classifier)/(forward|backward)_|{TOKEN_VECTORS.name}/")
COMMAND = "convert"  # the command in the config.json that a conversion writes


class WorkDirectory(Format):
    """The work directory of a run, or one of its steps."""

    name = "bert_jax"
    title = "work directory"

    def detect(self, path: files.PathLike) -> bool:
        try:
            return "command" in json_files.read(os.path.join(run_directory.find_root(path), "config.json"))
        except UserError:
            return False

    def read_config(self, path: files.PathLike) -> tuple[bert_config.EncoderConfig, Tokenizer]:
        run = run_directory.read_run(path)
        file = os.path.join(run_directory.find_root(path), "config.json")
        json_files.check(run["config"], {"model": dict}, file, "config")
        fields = dict(run["config"]["model"])
        tokenizer = run_directory.load_tokenizer(path)
        fields["vocab_size"] = fields.get("vocab_size") or tokenizer.vocab_size
        return bert_config.from_dict(fields), tokenizer

    def read(self, path: files.PathLike, *, ignore: str = "", log: Callable[[str], None] = print) -> Model:
        """Reads the newest step of a run (for fine-tuning, the best step), or the step at `path`."""
        run = run_directory.read_run(path)
        config, tokenizer = self.read_config(path)
        source, trained, frozen = checkpoint.read_stored(run_directory.best_or_newest(path), log=log)
        stored = assemble(trained | frozen)
        auxiliary = [f"{DISTILLATION}/", *(["mlm/"] if run["config"].get("lm_weight") else [])]
        sentence = SentenceVectors(**run["sentence"]) if run.get("sentence") else None
        if sentence and run["command"] != COMMAND:
            # A classifier of pairs of vectors, and the parameters that restore texts from vectors.
            auxiliary += ["classifier/", "mlm/", f"{DECODER}/"]
        params = {name: x for name, x in stored.items() if not name.startswith(tuple(auxiliary))}
        if any(map(_ONLY_OF_RUNS.match, params)):
            raise UserError(f"{source}: a BiLSTM or late interaction cannot be converted or distilled")
        if adapter := LowRankAdapter.from_stored("", trained, frozen):
            adapter = dataclasses.replace(adapter, base=_base_of_updates(path, run["config"]))
        params, generator = _networks(run, config, params, tokenizer, source)
        labels = tuple(run["labels"]) if run.get("labels") else None
        given = run.get("head", "")
        groups = {name.split("/")[0] for name in params}
        head = head_of(groups, *([given] if families.CLASSIFIER in params and given else []))
        if head == "none" != given and run["command"] in (COMMAND, "pretrain"):
            # A masked LM head that only uses the word embeddings has no parameters.
            head = "none" if families.of(config).masked_lm.has_parameters else "masked_lm"
        params = params_of_head(params, head, families.of(config), source, log)
        problem_type = run.get("problem_type", "") if head == "sequence_classification" else ""
        kinds = (problem_type, adapter, generator, sentence, PairScores(**run.get("scores", {})))
        return Model(config, params, head, tokenizer, labels, source, *kinds)

    def read_sentence(
        self, path: files.PathLike, config: bert_config.EncoderConfig, tokenizer: Tokenizer | None
    ) -> SentenceVectors | None:
        """Returns the sentence vectors of a run, or else the pooling that pre-training recorded."""
        run = run_directory.read_run(path)
        if run.get("sentence"):
            return SentenceVectors(**run["sentence"])
        pooling = config.classifier_pooling if run["command"] == "pretrain" else None
        return SentenceVectors(pooling) if pooling else None

    def write(self, model: Model, folder: files.PathLike, card: str = "") -> None:
        """Writes config.json, the vocabulary, without which no run could start from it, and checkpoints/0."""
        tokenizer = model.require_tokenizer()
        config: dict[str, Any] = {"model": model.config.to_dict()}
        if model.generator is not None:
            small = model.generator.config
            config["replaced_tokens"] = {
                "generator_hidden_size": small.hidden_size,
                "generator_layers": small.num_hidden_layers,
            }
        run = {
            "command": COMMAND,
            "config": config,
            "vocabulary": tokenizer.settings(),
            "head": model.head,
            "labels": model.labels,
            "problem_type": model.problem_type,
            "source": model.source,
        } | ({"sentence": model.sentence.stored()} if model.sentence else {})
        if model.scores != PairScores():
            run["scores"] = dataclasses.asdict(model.scores)
        files.make_directory(folder)
        workdir = run_directory.WorkDir(folder)
        workdir.open_run(run, {})
        workdir.copy_vocabulary(tokenizer.path)
        checkpointer = checkpoint.Checkpointer(workdir.checkpoints, keep=1)
        params = {name: jax.numpy.asarray(array) for name, array in model.stored.items()}
        checkpointer.save(0, {"params": nest(params)})
        checkpointer.close()

    def may_be_replaced(self, path: files.PathLike) -> bool:
        """True if a work directory was written by `write` and not by a run."""
        is_root = os.fspath(path) == run_directory.find_root(path)
        return is_root and run_directory.read_run(path)["command"] == COMMAND

    def load_params(
        self, path: files.PathLike, abstract_params: Any, *, ignore: str, log: Callable[[str], None]
    ) -> tuple[dict, checkpoint.Report]:
        """Loads parameters as `Format.load_params` does; each host reads only its own shards."""
        return checkpoint.load_params(run_directory.best_or_newest(path), abstract_params, log=log)


FORMAT = WorkDirectory()


def _base_of_updates(path: files.PathLike, config: Mapping[str, Any]) -> str:
    named = config.get("init_from", "")
    file = os.path.join(run_directory.find_root(path), run_directory.REPORT_FILE)
    # Earlier versions recorded no base.
    recorded = json_files.read(file, {"base?": str}).get("base", "") if files.exists(file) else ""
    # If the base no longer exists, it may have moved with the run, and `init_from` is used. A run that
    # continued the updates of `init_from` has their base.
    goes_on = config.get("adapter", {}).get("init") == "init_from"
    return recorded if recorded and (goes_on or files.exists(recorded)) else named


def _networks(
    run: Mapping[str, Any],
    config: bert_config.EncoderConfig,
    params: Mapping[str, Any],
    tokenizer: Tokenizer,
    source: str,
) -> tuple[Mapping[str, Any], Model | None]:
    """Returns the parameters of the network that a run trains, and its generator or None."""
    if not any(name.startswith(f"{GENERATOR}/") for name in params):
        return params, None
    own = {name: x for name, x in params.items() if not name.startswith(f"{GENERATOR}/")}
    if "discriminator/out/kernel" in own:  # a variant also has a masked LM head, and no class has both
        own = {name: x for name, x in own.items() if not name.startswith("mlm/")}
    options = run["config"]["replaced_tokens"]
    smaller = generator_config(config, options["generator_hidden_size"], options["generator_layers"])
    of_generator = flatten(generator_params(nest(params)))
    return own, Model(smaller, of_generator, "masked_lm", tokenizer, source=f"{source}, generator")
