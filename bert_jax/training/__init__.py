"""Training: the train step, the train loop, optimizers, evaluators, metrics and preemption."""
