"""The main functions of pre-training, fine-tuning, experiments and benchmarks, which combine the other modules."""
