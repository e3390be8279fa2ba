"""Files, local or behind a URL. Nothing else in bert_jax asks which of the two a path is."""
