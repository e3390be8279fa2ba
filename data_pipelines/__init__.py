"""Text to records, offline: corpus readers, sentences, vocabulary, pairs, packing. No jax in here."""
