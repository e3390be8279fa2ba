"""The checks of `bert-jax doctor`."""
