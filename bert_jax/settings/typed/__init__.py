"""The configurations of runs as frozen dataclasses, which are checked once and then passed on."""
