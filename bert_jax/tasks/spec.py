"""What sets one task apart from the others of its kind."""

import dataclasses
import os

from bert_jax.errors import UserError
from bert_jax.io import files
from bert_jax.tasks.readers.tables import PREPARED, Columns


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

    def file(self, data_dir: str, split: str) -> str:
        """The path of a split's file: DATA_DIR/FOLDER/FILE_NAME, or DATA_DIR/FILE_NAME; or what
        `glue_prepared.find` gives.
        """
        splits = dict(self.splits).get(split, (split,))
        if data_dir.startswith(PREPARED):
            from bert_jax.tasks.glue import prepared

            return prepared.find(self.name, data_dir, splits[0])
        names = [self.file_name.format(split=name) for name in splits]
        tried = dict.fromkeys(
            os.path.join(data_dir, folder, name) for name in names for folder in (self.folder, "")
        )
        for path in tried:
            if files.exists(path):
                return path
        expected = os.path.join(self.folder, names[0])
        raise UserError(
            f"{self.name}: found no {' and no '.join(tried)}; data_dir is the folder that holds {expected}"
        )
