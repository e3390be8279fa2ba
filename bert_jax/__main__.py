"""`python -m bert_jax` is `bert-jax`."""

import sys

from bert_jax import signals

signals.block()  # until the command is known, because a signal ends each command differently

from bert_jax.cli import main  # noqa: E402

if __name__ == "__main__":
    sys.exit(main())
