"""Records on disk, and the loader from records to host batches. No module here imports jax."""
