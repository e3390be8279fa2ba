"""The outputs of a model for a whole file."""

import jax
import numpy as np
import pytest
from support.encoded import rows
from support.tiny_model import draw_parameters, tiny_config

from bert_jax.objectives.classification import Classification
from bert_jax.parallel import sharding
from bert_jax.tasks.rows import outputs
from bert_jax.tasks.rows.outputs import Shapes
from bert_jax.training import flops


@pytest.mark.long
@pytest.mark.parametrize("axes", [(8, 1, 1), (2, 2, 2)])
def test_outputs_of_packed_rows_are_those_of_padded_ones_on_any_mesh(axes):
    rng = np.random.default_rng(0)
    lengths = rng.integers(3, 33, 400)
    data = rows(lengths, tokens=rng.integers(5, 40, lengths.sum(), np.int32), targets={})
    objective, mesh = Classification(tiny_config(40), 2, "classification"), sharding.make_mesh(*axes)
    row_flops = flops.row_flops(objective)
    packed = Shapes.choose(data, 64, row_flops, mesh, packs=True, most_tokens=4096)
    count = 4096 // 128 // (axes[0] * axes[1]) * (axes[0] * axes[1])
    assert packed.packed is not None and packed.packed.rows == (count,) and packed.packed.length == 128
    boxed = jax.eval_shape(objective.init, jax.random.key(0))
    params = jax.device_put(draw_parameters(objective), sharding.parameter_shardings(boxed, mesh))
    predict = outputs.make_predict(objective, mesh)
    found = [outputs.predict_all(predict, params, data, shapes, mesh) for shapes in (Shapes(64), packed)]
    assert np.ptp(found[0], axis=0).min() > 1e-4
    np.testing.assert_allclose(*found, atol=2e-6)
