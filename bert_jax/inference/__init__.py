"""Inference with trained models: predictions, embeddings, mask filling and attention maps."""
