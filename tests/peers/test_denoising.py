"""The loss of denoising here and with transformers, whose decoder reads one vector by cross-attention."""

import jax
import numpy as np
import pytest
from support.transformers_models import VOCAB, here, random_model, torch

from bert_jax.objectives.embedding.denoising import DenoisingAutoEncoder
from bert_jax.tasks.rows import batches

pytestmark = pytest.mark.peer

LAYERS, WIDTH, HEADS = 2, 64, 4
FIELDS = dict(hidden_size=WIDTH, num_hidden_layers=LAYERS, num_attention_heads=HEADS, intermediate_size=96)
CLS, SEP = 101, 102


def cross_attention(decoder):
    """The cross-attention of transformers' layers, stacked as here."""
    layers = [layer.crossattention for layer in decoder.bert.encoder.layer]

    def stacked(get, *shape):
        return np.stack([get(layer).detach().numpy().T.reshape(shape) for layer in layers])

    split = HEADS, WIDTH // HEADS
    return {
        "value": {
            "kernel": stacked(lambda x: x.self.value.weight, WIDTH, *split),
            "bias": stacked(lambda x: x.self.value.bias, *split),
        },
        "output": {
            "kernel": stacked(lambda x: x.output.dense.weight, *split, WIDTH),
            "bias": stacked(lambda x: x.output.dense.bias, WIDTH),
        },
        "layer_norm": {
            "scale": stacked(lambda x: x.output.LayerNorm.weight, WIDTH),
            "bias": stacked(lambda x: x.output.LayerNorm.bias, WIDTH),
        },
    }


def test_the_loss_of_a_batch(tmp_path):
    decoder = random_model("BertLMHeadModel", is_decoder=True, add_cross_attention=True, **FIELDS)
    both = random_model("BertForMaskedLM", **FIELDS)
    assert not both.load_state_dict(decoder.state_dict(), strict=False).missing_keys
    config, params = here(both, tmp_path)

    rng = np.random.default_rng(0)
    lengths = rng.integers(4, 20, 8)
    rows = [[CLS, *rng.integers(1000, VOCAB, length - 2), SEP] for length in lengths]
    data = batches.EncodedRows(
        tokens=np.concatenate(rows).astype(np.int32),
        offsets=np.cumsum([0, *lengths]),
        examples=np.arange(8),
        first_lengths=lengths.astype(np.int32),
        targets={},
        pad_id=0,
        max_seq_length=32,
    )
    objective = DenoisingAutoEncoder(config, (CLS, SEP))
    batch = objective.prepare(batches.make_batch(data, np.arange(8), (24,)), jax.random.key(0), True)
    own = {"layers": {"stack": {"layer": {"cross_attention": cross_attention(decoder)}}}}
    losses, metrics = jax.jit(lambda *args: objective.loss(*args, None))(params | {"decoder": own}, batch)

    ids, damaged, real = (
        torch.tensor(np.asarray(batch[name]), dtype=torch.int64)
        for name in ("input_ids", "damaged_input_ids", "damaged_sequence_ids")
    )
    with torch.no_grad():
        states = both.bert(damaged, attention_mask=real).last_hidden_state
        vectors = (states * real[..., None]).sum(1, keepdim=True) / real.sum(1)[:, None, None]
        logits = decoder(ids[:, :-1], encoder_hidden_states=vectors).logits
        expected = torch.nn.functional.cross_entropy(
            logits.reshape(-1, VOCAB), ids[:, 1:].reshape(-1), ignore_index=0
        )
    total, weight = losses["task"]
    assert weight == metrics["accuracy"][1] == sum(lengths - 1)
    np.testing.assert_allclose(total / weight, expected, rtol=1e-5)
    assert expected > 5
