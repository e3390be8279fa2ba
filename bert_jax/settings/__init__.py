"""Run configurations: their fields, their defaults, and the config files that set them."""
