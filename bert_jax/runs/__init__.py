"""The main functions of pre-training, fine-tuning, experiments and benchmarks: they combine other modules."""
