"""Implementations of the model's operations for each platform: plain XLA programs and fused kernels."""
