"""The whole way from text to a fine-tuned task, on English that every CPython carries."""
