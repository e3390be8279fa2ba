"""What a compiled program does, as pure functions over its text: products, bytes, traffic, time and waste."""
