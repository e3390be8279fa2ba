"""Search in a corpus by vectors: `corpus` reads it, `index` stores it, `reranking` orders the results."""
