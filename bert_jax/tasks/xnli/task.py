"""The XNLI task: its files, the three ways to reach other languages, and scores by language."""

from __future__ import annotations

import dataclasses
import functools
import os
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar

import numpy as np

from bert_jax.errors import UserError
from bert_jax.io import comma_lists, files
from bert_jax.io.wording import counted
from bert_jax.settings.config_fields import option
from bert_jax.tasks import error_analysis, metrics, table
from bert_jax.tasks.predictions import ClassPredictions, TablePredictions
from bert_jax.tasks.registry import TaskSpec
from bert_jax.tasks.table import Columns, Examples
from bert_jax.tasks.text.task import ClassificationConfig, TextClassification

LANGUAGES = tuple("ar bg de el en es fr hi ru sw th tr ur vi zh".split())
TRANSFERS = ("zero_shot", "translate_train", "translate_test")

# The folders of the archives XNLI-1.0.zip and XNLI-MT-1.0.zip in data_dir, and data_dir itself.
_HUMAN = ("XNLI-1.0", "")
_MACHINE = ("XNLI-MT-1.0/{0}", "{0}", "")
_TRAINING = re.compile(r"multinli\.train\.(\w+)\.tsv")
_TRAINING_COLUMNS = Columns("premise", "hypo", "label", quotes=False)
_OF_TRAINING = {"contradictory": "contradiction"}  # the spelling of a label in the training files


@dataclasses.dataclass(frozen=True)
class XnliConfig(ClassificationConfig):
    """The fields of XNLI."""

    transfer: str = option(
        "zero_shot",
        "`zero_shot`: trained on English; `translate_train`: trained on translations into the languages; "
        "`translate_test`: trained on English, and evaluated on translations into English",
        choices=TRANSFERS,
    )
    languages: str = option(
        "", "of the evaluation and of translate_train, with commas between; all 15 if empty"
    )


def chosen(config: XnliConfig) -> tuple[str, ...]:
    """Returns the languages of a configuration."""
    names = tuple(comma_lists.names(config.languages, "languages")) or LANGUAGES
    if not {*names} <= {*LANGUAGES}:
        raise UserError(f"languages={config.languages}: expected some of {','.join(LANGUAGES)}")
    return names


class XnliPredictions(ClassPredictions):
    """Predictions with scores by language."""

    error_columns: ClassVar[Sequence[str]] = (
        *ClassPredictions.error_columns[:1],
        "language",
        *ClassPredictions.error_columns[1:],
    )

    def breakdown(self) -> dict[str, dict[str, float]]:
        languages, right = np.array(self.examples.languages), self.predicted == self.targets
        return {
            name: {
                "accuracy": float(np.mean(right[languages == name])),
                "examples": int((languages == name).sum()),
            }
            for name in dict.fromkeys(self.examples.languages)
        }

    def errors(self) -> Iterator[Sequence[Any]]:
        for i, (line, *others) in zip(self.mistakes(), super().errors(), strict=True):
            yield line, self.examples.languages[i] if self.examples.languages else "", *others

    def plot(self, path: str) -> None:
        found = self.breakdown()
        error_analysis.plot_by_label(path, [one["accuracy"] for one in found.values()], [*found], "accuracy")


class Xnli(TextClassification):
    """XNLI: whether a premise entails a hypothesis, contradicts it, or neither."""

    Config = XnliConfig
    config: XnliConfig
    title = "xnli"
    Predictions = XnliPredictions

    @classmethod
    def unused(cls, config: Any, spec: TaskSpec) -> Iterator[tuple[str, str]]:
        yield from super().unused(config, spec)
        if config.data.train and config.data.eval:
            yield "transfer", "it chooses files of data_dir, and data.train and data.eval name others"

    @classmethod
    def file(cls, config: Any, spec: TaskSpec, data_dir: str, split: str) -> str:
        """Returns the path of a split's file; several training files have commas between them."""
        languages = chosen(config)
        if table.is_prepared(data_dir):
            return spec.file(data_dir, split)
        if split == "train":
            languages = languages if config.transfer == "translate_train" else ("en",)
            names = [[f"multinli.train.{language}.tsv"] for language in languages]
            return ",".join(_find(data_dir, one, _MACHINE, "multinli") for one in names)
        of, folders = (".en", _MACHINE) if config.transfer == "translate_test" else ("", _HUMAN)
        return _find(data_dir, [f"xnli.{split}{of}.tsv", f"xnli.{split}{of}.jsonl"], folders, "xnli")

    def read(self, path: str) -> Examples:
        return self._of_languages(path, super().read)

    def read_unlabeled(
        self, path: str, *, test: bool = False, format: str = "auto", **columns: Any
    ) -> Examples:
        """Returns the rows of a file; only XNLI's own files have to name their languages."""
        if not files.name(path).startswith("xnli."):
            columns = {"language": ""} | columns
        read = functools.partial(super().read_unlabeled, test=test, format=format, **columns)
        return self._of_languages(path, read)

    def _of_languages(self, path: str, read: Callable[[str], Examples]) -> Examples:
        languages = chosen(self.config)
        joined = Examples(path)
        for part in table.parts(path):
            examples = read(part)
            if training := _TRAINING.search(files.name(part)):
                examples.languages = [training[1]] * len(examples)
            elif examples.languages:
                kept = examples.where([language in languages for language in examples.languages])
                if not len(kept):
                    raise UserError(f"{part} has no row of the languages {','.join(languages)}")
                if others := len(examples) - len(kept):
                    kept.notes.append(f"{counted(others, 'row')} of other languages skipped")
                examples = kept
            joined.extend(examples)
        return joined

    def columns_in(self, path: str) -> Columns:
        of_training = self.columns.language and _TRAINING.search(files.name(path))
        return _TRAINING_COLUMNS if of_training else self.columns

    def parse_label(self, text: str) -> int | str:
        return super().parse_label(_OF_TRAINING.get(text.strip(), text))

    @property
    def known_metrics(self) -> tuple[str, ...]:
        return ("average", *self.scorers, *(f"accuracy_{language}" for language in chosen(self.config)))

    def score(self, predictions: TablePredictions) -> dict[str, float]:
        by_language = {name: one["accuracy"] for name, one in predictions.breakdown().items()}
        all_rows = metrics.accuracy(predictions.predicted, predictions.targets)
        scores = {f"accuracy_{name}": value for name, value in by_language.items()}
        scores["average"] = float(np.mean(list(by_language.values()))) if by_language else all_rows
        for name in self.metrics:
            if name in self.scorers:
                scores[name] = float(self.scorers[name](predictions.predicted, predictions.targets))
            elif name not in scores:
                raise UserError(f"metrics={name}: {predictions.examples.path} has no row of this language")
        return {name: scores[name] for name in self.metrics}


def _find(data_dir: str, names: Sequence[str], folders: Sequence[str], of: str = "") -> str:
    tried = [os.path.join(data_dir, folder.format(of), name) for folder in folders for name in names]
    for path in tried:
        if files.exists(path):
            return path
    raise UserError(
        f"xnli: found no {' and no '.join(tried)}; data_dir is the folder that holds XNLI-1.0 and XNLI-MT-1.0"
    )
