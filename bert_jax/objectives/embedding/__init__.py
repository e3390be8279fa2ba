"""Objectives of vectors of texts: of one for each text, or one for each token, and of groups of texts."""
