"""The fields of a task's configuration that every task has, as frozen dataclasses.

Each task has a dataclass with exactly the fields that it uses.
"""

from __future__ import annotations

import dataclasses

from bert_jax.settings.config_fields import option

LINEAR, BILSTM = HEADS = ("linear", "bilstm")  # the values of `head`


@dataclasses.dataclass(frozen=True)
class DataConfig:
    """The `config.data.*` fields that every task uses."""

    text_a: str = option("", "the column of the text, by name or by number from 0")
    label: str = option("", "the column of the label")
    id: str = option("", "the column of the id; without one, examples are numbered from 0")
    format: str = option("auto", "by suffix; `tsv`, `csv`, `jsonl`; of questions `json`, of tags `conll`")


@dataclasses.dataclass(frozen=True)
class TaskConfig:
    """The fields that every task uses."""

    max_seq_length: int = option(
        128, "tokens with [CLS] and [SEP]; longer texts are cut, or have windows", minimum=4, maximum=2**24
    )
    metrics: str = option(
        "",
        "names with commas between; the first one selects the best checkpoint. Of labels `accuracy`, `f1` "
        "(of two), `f1_macro`, `matthews`; XNLI also `average`, `accuracy_LANGUAGE`; several labels "
        "`f1_micro`, `f1_macro`, `exact_match`; numbers `pearson`, `spearman`, `mean_squared_error`; "
        "choices `accuracy`; tags `f1`, `precision`, `recall`, `accuracy`, or `accuracy`, `f1_macro`; "
        "questions `f1`, `exact_match`, or with `v2` `exact`; pairs of texts `mrr`, `recall1`, `recall10`, "
        "`ndcg10`, or with similarities `spearman`, `pearson`",
    )
    head: str = option(
        LINEAR, "on the encoder; `bilstm`: with two layers of a BiLSTM ([baselines.md](baselines.md))"
    )
    head_size: int = option(768, "of each direction of the BiLSTM", minimum=1, maximum=2**20)
    data: DataConfig = DataConfig()


@dataclasses.dataclass(frozen=True)
class WindowsConfig(TaskConfig):
    """The fields of tasks that split a long text into windows."""

    doc_stride: int = option(
        0,
        "stride, in tokens, between windows over a long text (for questions: over the context); 0: the text "
        "is truncated",
        maximum=2**24,
    )
