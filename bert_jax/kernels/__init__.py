"""How each operation of the model is computed on each platform: plain XLA forms and fused kernels."""
