"""The main functions of pre-training, fine-tuning, sweeps and benchmarks, which combine the other modules."""
