"""Reports the contents and the problems of records and vocabularies for `bert-jax inspect`."""

from bert_jax.data.inspection.google_rows import inspect_google_records
from bert_jax.data.inspection.packed_rows import inspect_record_file, inspect_records
from bert_jax.data.inspection.report import Report, text_histogram
from bert_jax.data.inspection.rows import many_unknown, unusual_labels
from bert_jax.data.inspection.vocabularies import inspect_vocabulary

__all__ = [
    "Report",
    "inspect_google_records",
    "inspect_record_file",
    "inspect_records",
    "inspect_vocabulary",
    "many_unknown",
    "text_histogram",
    "unusual_labels",
]
