"""Parameters out of any checkpoint, onto a mesh, with nothing silently new or left."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax import convert
from bert_jax.checkpoint.leaves import flatten, nest
from bert_jax.convert import formats
from bert_jax.convert.formats import work_directory
from bert_jax.errors import UserError
from bert_jax.models import ClassificationModel, PretrainingModel


def abstract(model, inputs, sharding=None):
    ids = jnp.zeros((1, 4), jnp.int32)
    made = jax.eval_shape(lambda: nn.unbox(model.init(jax.random.key(0), *[ids] * inputs)["params"]))
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding), made)


@pytest.fixture(params=["huggingface", "bert_jax"])
def source(request, export, tmp_path):
    """source(head): the path of a model of that kind, and the model."""

    def make(*args, **fields):
        folder, model = export(*args, **fields)
        if request.param == "bert_jax":
            folder = tmp_path / "native"
            folder.mkdir()
            work_directory.FORMAT.write(model, folder)
        return folder, model

    return make


def test_all_of_it_onto_a_sharding(source):
    path, model = source()
    mesh = jax.make_mesh((2,), ("x",))
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
    params, report = convert.load_params(path, abstract(PretrainingModel(model.config), 6, sharding))
    flat = flatten(params)
    assert report.new == () and report.unused == () and len(report.loaded) == len(model.params)
    for name, array in model.params.items():
        assert np.array_equal(flat[name], array) and flat[name].sharding == sharding


def test_heads_are_left_and_a_new_one_is_told(source):
    path, model = source()
    wanted = abstract(ClassificationModel(model.config, 3), 4)
    with pytest.raises(UserError, match=r"lacks classifier/.*init_ignore"):
        convert.load_params(path, wanted)
    params, report = convert.load_params(path, wanted, ignore="classifier/.*")
    assert report.new == ("classifier/bias", "classifier/kernel") and "classifier" not in params
    assert {name.split("/")[0] for name in report.unused} == {"mlm", "nsp"}


def test_of_a_fine_tuning_the_best_step_is_loaded(make_model, tmp_path):
    model = make_model("none")
    work_directory.FORMAT.write(model, tmp_path / "run")
    name = next(iter(model.params))
    better = dict(model.params) | {name: model.params[name] + 1}
    work_directory.FORMAT.write(model.replace(params=better), tmp_path / "best")
    (tmp_path / "best" / "checkpoints").rename(tmp_path / "run" / "best")
    wanted = {each: jax.ShapeDtypeStruct(x.shape, x.dtype) for each, x in model.params.items()}
    for place, expected in (("run", better), ("run/checkpoints/0", model.params)):
        loaded, report = convert.load_params(str(tmp_path / place), nest(wanted), log=lambda line: None)
        np.testing.assert_array_equal(flatten(loaded)[name], expected[name])
        assert np.array_equal(convert.load(tmp_path / place, log=print).params[name], expected[name])
        assert report.source == str(tmp_path / ("run/best/0" if place == "run" else place))


@pytest.mark.parametrize("kind", ["huggingface", "bert_jax", "tensorflow"])
def test_weights_that_are_not_finite_are_an_error_that_names_the_tensor(make_model, tmp_path, kind):
    if kind == "tensorflow":
        pytest.importorskip("tensorflow")
    model = make_model("masked_lm", pooler=False)
    name = "encoder/layers/stack/layer/query/bias"
    changed = {name: model.params[name].copy()}
    changed[name][1, 0, 0] = np.nan
    formats.FORMATS[kind].write(model.replace(params=model.params | changed), tmp_path)
    wanted = {each: jax.ShapeDtypeStruct(x.shape, x.dtype) for each, x in model.params.items()}
    for read in (convert.load, lambda path: convert.load_params(path, nest(wanted))):
        with pytest.raises(
            UserError, match=r"(layer.1.attention.self.query.bias|layer/query/bias) .*not finite"
        ):
            read(tmp_path)
