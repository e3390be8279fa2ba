"""The tiny pre-trained checkpoint that tests of this folder start from, and files for every kind of task."""

from support.fine_tuned import finetuned  # noqa: F401
from support.pretrained import pretrained, vocabulary  # noqa: F401
from support.tiny_tasks import task_files  # noqa: F401
