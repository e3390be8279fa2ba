"""The complete path from text to a fine-tuned task, on English text that every CPython contains."""
