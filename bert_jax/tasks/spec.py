"""What sets one task apart from the others of its kind."""

import dataclasses

from bert_jax.tasks.readers import sources
from bert_jax.tasks.readers.tables import Columns


@dataclasses.dataclass(frozen=True)
class TaskSpec:
    """What sets one task apart: its columns, labels and metrics.

    `metrics` are reported in order, and the first selects the best checkpoint. `labels` fixes the order of
    the logits; None means that they are inferred from the training rows. `test_columns` differ from `columns`
    where the benchmark's test file has another layout; it never holds labels. `file_name` is what data_dir
    has for a split, in it or in `folder`; empty: the files are named one by one.
    """

    name: str
    kind: str  # of `bert_jax.tasks.base`
    metrics: tuple[str, ...]
    folder: str = ""
    columns: Columns | None = None
    test_columns: Columns | None = None
    labels: tuple[str, ...] | None = None
    file_name: str = ""  # with {split} in it
    splits: tuple[tuple[str, tuple[str, ...]], ...] = ()  # what {split} may be, where it is not the split
    prepared: bool = False  # whether tensorflow-datasets has it, in `glue`

    def file(self, data_dir: str, split: str) -> str:
        """Returns the path of a split: DATA_DIR/FOLDER/FILE_NAME, DATA_DIR/FILE_NAME, or a prepared one.

        Raises:
            UserError: there is none, with the places where it was looked for.
        """
        splits = dict(self.splits).get(split, (split,))
        return sources.source_of(data_dir).find(data_dir, self, splits)
