"""Training objectives as pure functions: masking, losses and their (sum, weight) pairs."""
