import pytest

from bert_jax.models import sizes
from bert_jax.objectives.classification import Classification
from bert_jax.runs import benchmark
from bert_jax.settings.run_config import AdapterConfig
from bert_jax.training import flops
from bert_jax.training.adapters import adapt


@pytest.mark.parametrize(
    "size,length,predictions,gigaflops",
    [
        *(("base", 128, 20, 69.9), ("base", 512, 80, 301.4)),
        *(("large", 128, 20, 240.6), ("large", 512, 80, 1020.5)),
    ],
)
def test_flops_of_a_row(size, length, predictions, gigaflops):
    row_flops = flops.RowFlops.of(benchmark.make_masked_lm(sizes.named(size), length))
    assert round(row_flops(length, predictions) / 1e9, 1) == gigaflops


def test_the_mask_decoder_is_a_further_layer_without_keys_and_values():
    fields = dict(position="disentangled", max_position_embeddings=64)
    small, length = sizes.named("tiny", **fields), 64
    with_decoder, without = (
        flops.RowFlops.of(benchmark.make_masked_lm(config, length))(length)
        for config in (small.replace(mask_decoder=True), small)
    )
    # In H^2: query, output of attention and the feed-forward block; then four products of L^2 H.
    assert with_decoder - without == pytest.approx(6 * (length * 10 * 128**2 + 4 * 128 * length**2))


@pytest.mark.parametrize(
    "fields, token, scores, sequence",
    [
        # In thirds of H^2: query, key, value, output of attention, the two of the feed-forward block.
        ({"kind": "lora"}, (2 + 1 + 2 + 2 + 8 + 8) + (3 + 2 + 3 + 2 + 8 + 8), (3, 3), 2),
        ({"kind": "lora", "targets": "output"}, (4 * 1 + 4 + 8) + (4 * 2 + 8 + 12), (1, 3), 2),
        ({"kind": "bitfit"}, 2 * (2 * 12), (3, 3), 2),
        ({"kind": "head"}, 2 * 12, (1, 1), 1),
        ({"kind": "head", "train": "pooler/.*"}, 2 * 12, (1, 1), 2),
        ({"kind": "head", "train": "encoder/embeddings/.*|pooler/.*"}, 2 * (2 * 12), (3, 3), 3),
    ],
)
def test_frozen_weights_have_no_gradient_and_nothing_below_the_first_trained_has(
    fields, token, scores, sequence
):
    config = sizes.named("tiny")
    task = Classification(config, 2)
    adapted = flops.RowFlops.of(adapt(task, AdapterConfig(**fields), task.new_groups))
    assert adapted.token == pytest.approx(token * 128**2 / 3)
    assert [3 * each for each in adapted.scores] == pytest.approx(list(scores))
    assert adapted.sequence == pytest.approx(sequence * 128**2 / 3)
    products = 2 * 64 * token * 128**2 + 2 * sequence * 128**2 + 2 * sum(scores) * 2 * 128 * 64 * 64
    assert adapted(64) == pytest.approx(products)


def test_a_device_of_a_chip_with_two_has_half_of_its_peak():
    kinds = {"TPU v3": 123e12, "TPU7x": 2307e12}  # as jax names the devices; the chip's data sheets
    assert {kind: 2 * flops.find_peak(kind).bfloat16 for kind in kinds} == kinds
