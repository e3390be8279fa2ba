"""Pre-training that takes its weights and its architecture from another checkpoint."""

import shutil

import pytest

from bert_jax import cli
from bert_jax.workdir import run_directory

pytestmark = pytest.mark.usefixtures("quick_compilation")


@pytest.fixture(scope="module")
def encoder(tmp_path_factory, trained):
    """The weights of `trained` without its heads, as an encoder of sentences has them."""
    from bert_jax import convert
    from bert_jax.convert.formats import work_directory

    model = convert.load(trained)
    params = {name: x for name, x in model.params.items() if name.split("/")[0] not in ("mlm", "nsp")}
    directory = tmp_path_factory.mktemp("encoder") / "model"
    work_directory.FORMAT.write(model.replace(params=params, head="none"), directory)
    return directory


def continued(records, directory, *more):
    """Continued pre-training whose config is of another size."""
    flags = f"--workdir={directory} --config.data.dir={records} --config.batch_size=8 --config.steps=2"
    return ["pretrain", "--config=pretrain/tiny", *flags.split(), "--config.optimizer.warmup_steps=1", *more]


@pytest.mark.long
def test_the_architecture_is_that_of_the_weights(records, encoder, tmp_path, capsys):
    command = continued(records, tmp_path / "run", f"--config.init_from={encoder}")
    assert cli.main([*command, "--config.model.num_attention_heads=4"]) == 2
    assert "num_attention_heads=2, not 4" in capsys.readouterr().err
    assert cli.main(command) == 2
    assert "--config.init_ignore" in capsys.readouterr().err
    # A run that made no step has no claim on its directory.
    assert (
        cli.main([*command, "--config.init_ignore=mlm/.*|nsp/.*", "--config.model.layer_norm_eps=1e-6"]) == 0
    )
    model = run_directory.read_run(tmp_path / "run")["config"]["model"]
    names = ("hidden_size", "intermediate_size", "max_position_embeddings")
    assert [model[name] for name in names] == [32, 64, 32]
    assert model["layer_norm_eps"] == 1e-6


@pytest.mark.long
def test_a_run_that_started_needs_the_weights_no_more(records, trained, tmp_path, capsys):
    weights = shutil.copytree(trained, tmp_path / "weights")
    command = continued(records, tmp_path / "run", f"--config.init_from={weights}")
    assert cli.main(command) == 0
    shutil.rmtree(weights)
    capsys.readouterr()
    assert cli.main([*command, "--config.checkpoint.every=1"]) == 0
    assert "resumed from step 2" in capsys.readouterr().out
    assert cli.main([*command, "--config.model.hidden_size=64"]) == 2
    assert "model.hidden_size is 32 there and 64 here" in capsys.readouterr().err
