"""`python -m bert_jax` is `bert-jax`."""

import sys

from bert_jax.cli import main

if __name__ == "__main__":
    sys.exit(main())
