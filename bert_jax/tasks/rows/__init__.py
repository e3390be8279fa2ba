"""Examples as rows of tokens: encoding, windows, batches and packing."""
