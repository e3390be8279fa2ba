"""The tiny pre-trained checkpoint and the runs that tests of this folder start from."""

from support.pretrained import pretrained, vocabulary  # noqa: F401
from support.task_runs import run_of  # noqa: F401
