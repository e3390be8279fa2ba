"""The paper's table 6: the effect of the model's size, at equal time and at equal tokens.

bert-jax sweep --experiment=sizes --workdir=runs/sizes --input='wiki/*' --input_format=wikiextractor
"""

from bert_jax.runs.sweep import Experiment, HeldOut, MinimalPairs, Variant

SIZES = ((2, 128), (4, 128), (4, 256), (6, 384))


def variant(layers, hidden):
    """Returns the variant with a size."""
    fields = {
        "model.num_hidden_layers": layers,
        "model.hidden_size": hidden,
        "model.intermediate_size": 3 * hidden,
        "model.num_attention_heads": hidden // 64,
        "model.initializer_range": hidden**-0.5,
    }
    return Variant(f"{layers} layers of {hidden}", "pretrain/hour", "rows", fields)


def get_experiment():
    return Experiment(
        "Models of four sizes",
        variants=[variant(*size) for size in SIZES],
        measures=[HeldOut("held out", "rows"), MinimalPairs()],
        budget="seconds=1800",
        vocabulary=("--size=8192",),
        records={"rows": ("--nsp=none", "--full_rows")},
        published="""
The paper's table 6, with the perplexity of held-out masked tokens and MNLI, on the development set:

| layers | width | heads | perplexity | MNLI |
|---|---|---|---|---|
| 3 | 768 | 12 | 5.84 | 77.9 |
| 6 | 768 | 3 | 5.24 | 80.6 |
| 6 | 768 | 12 | 4.68 | 81.9 |
| 12 | 768 | 12 | 3.99 | 84.4 |
| 12 | 1024 | 16 | 3.54 | 85.7 |
| 24 | 1024 | 16 | 3.23 | 86.6 |

There every size is trained for the same million steps. Here a larger model takes
fewer steps in the same time.
""",
    )
