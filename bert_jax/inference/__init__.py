"""Trained models at work: predictions, embeddings, masked words and attention maps."""
