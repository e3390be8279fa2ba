"""Fused kernels for TPUs, in Pallas."""
