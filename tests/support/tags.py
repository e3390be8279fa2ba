"""Tags in the scheme of the CoNLL-2003 files."""

from bert_jax.tasks.tagging import entities


def to_iob1(tags):
    """The tags of a sentence in IOB1, where B only begins an entity that follows one of its type."""
    out, previous = ["O"] * len(tags), entities.Span("", -1, -1)
    for span in entities.spans(tags):
        follows = span.start == previous.end and span.type == previous.type
        out[span.start : span.end] = [entities.join("I", span.type)] * (span.end - span.start)
        if follows:
            out[span.start] = entities.join("B", span.type)
        previous = span
    return out
