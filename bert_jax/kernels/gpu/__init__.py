"""Fused kernels for NVIDIA GPUs, in Pallas' form of Triton."""
