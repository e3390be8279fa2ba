"""The file formats of models: Hugging Face folders, TF1 checkpoints and work directories of bert_jax."""
