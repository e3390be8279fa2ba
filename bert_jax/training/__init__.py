"""What every run shares: the step, the loop, optimizers, metrics and the end of a run."""
