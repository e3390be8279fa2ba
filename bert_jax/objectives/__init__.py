"""What a model learns, as pure functions: masks, losses and their (sum, weight) pairs."""
