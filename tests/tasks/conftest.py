"""The tiny pre-trained checkpoint that tests of this folder start from."""

from support.fine_tuned import finetuned  # noqa: F401
from support.pretrained import pretrained, vocabulary  # noqa: F401
