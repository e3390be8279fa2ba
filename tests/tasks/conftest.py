"""The tiny pre-trained checkpoint that tests of this folder start from."""

from support.pretrained import pretrained, vocabulary  # noqa: F401
