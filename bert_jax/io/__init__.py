"""Files, local or behind a URL. Nothing outside of this package asks which of the two a path is."""
