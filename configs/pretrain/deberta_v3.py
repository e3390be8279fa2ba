"""DeBERTa v3 (He et al. 2021, 2111.09543): replaced tokens, with separate gradients of the embeddings.

For TPU slices:

    bert-jax vocab --kind=sentencepiece --normalizer=deberta --input='text/*' --output=spm.model --size=128001
    bert-jax data --input='text/*' --vocab=spm.model --output=records --max_seq_length=512 \
        --nsp=none --full_sentences
    bert-jax pretrain --config=pretrain/deberta_v3:base --workdir=runs/deberta --config.data.dir=records

Sizes: xsmall, small, base (the default) and large. The generator has the discriminator's width and half of
its layers. As in microsoft/DeBERTa (experiments/language_model/rtd.sh, DeBERTa/apps/tasks/rtd_task.py), 15%
of the tokens are masked, each becomes [MASK], the warm-up has 10,000 steps and is followed by a linear decay,
Adam has no bias correction, and the gradient of each network is clipped to a norm of 1.

Not verified against the paper, whose text was not available: 500,000 steps of 8,192 rows, rates of 6e-4
(large: 3e-4), b2=0.98 and the weight of 50. The published script has batches of 64 (xsmall) and 256, rates of
3e-4 (xsmall) and 1e-4, b2=0.999 and a weight of 10.

Where a batch does not fit, set accumulate_steps. docs/families.md has the rest.
"""

from bert_jax.errors import UserError
from bert_jax.models import sizes
from bert_jax.settings import defaults

SIZES = ("xsmall", "small", "base", "large")


def get_config(size: str = "base"):
    if size not in SIZES:
        raise UserError(
            f"pretrain/deberta_v3:{size}: expected pretrain/deberta_v3:SIZE with one of {', '.join(SIZES)}"
        )
    fields = dict(sizes.DEBERTA[f"deberta-v3-{size}"])
    del fields["vocab_size"]  # set by the records
    c = defaults.pretrain("base", **fields)
    c.model.scan_unroll = 0  # minutes of compilation, once; no copies of stacked activations in every step
    c.objective = "replaced_tokens"
    c.replaced_tokens.sharing = "gdes"
    c.replaced_tokens.generator_hidden_size = c.model.hidden_size
    c.replaced_tokens.generator_layers = c.model.num_hidden_layers // 2
    c.masking.replace, c.masking.never_chosen = "1,0,0", "special"
    c.batch_size, c.steps = 8192, 500_000
    c.optimizer.schedule = "warmup_then_decay"
    c.optimizer.learning_rate = 3e-4 if size == "large" else 6e-4
    c.optimizer.warmup_steps = 10_000
    c.optimizer.b2 = 0.98
    return c
