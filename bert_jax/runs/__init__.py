"""The mains: pre-training, fine-tuning, sweeps and benchmarks. They wire the parts together."""
