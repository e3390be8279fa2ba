"""Pure functions of a compiled program's text: FLOPs, bytes, traffic, time and waste."""
