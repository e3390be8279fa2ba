"""Classification and regression of texts and pairs of texts."""

from bert_jax.tasks.registry import TaskSpec
from bert_jax.tasks.text.task import MultiLabel, TextClassification, TextRegression

# These tasks are for the user's own files, so their columns come from the configuration.
TASKS = (
    TaskSpec("classification", TextClassification, ("accuracy", "f1_macro")),
    TaskSpec("regression", TextRegression, ("pearson", "spearman", "mean_squared_error")),
    TaskSpec("multilabel", MultiLabel),
)
