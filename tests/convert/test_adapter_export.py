"""Runs with low-rank updates of each family: their merged export, and the start of another run."""

import jax
import numpy as np
import optax
import pytest
from support.models import small_of
from support.tiny_model import draw_parameters

from bert_jax import checkpoint, convert, tokenization
from bert_jax.checkpoint.leaves import flatten, nest
from bert_jax.convert import conversion, families
from bert_jax.objectives.classification import Classification
from bert_jax.parallel import sharding
from bert_jax.settings.run_config import AdapterConfig
from bert_jax.training.adapters import adapt
from bert_jax.training.state import init_state
from bert_jax.workdir import run_directory

pytestmark = pytest.mark.usefixtures("quick_compilation")

QUIET = {"log": lambda line: None}
ROWS = {"roberta": "CLS PAD SEP UNK MASK", "xlm-roberta": "CLS PAD SEP UNK MASK"}  # ids that transformers has


@pytest.mark.long
@pytest.mark.parametrize("name", families.FAMILIES)
def test_every_family_is_exported_merged_and_started_from(name, tmp_path):
    special = ROWS.get(name, "PAD UNK CLS SEP MASK").split()
    (tmp_path / "vocab.txt").write_text("".join(f"[{token}]\n" for token in special) + "the\ncat\n")
    family, tokenizer = families.FAMILIES[name], tokenization.load(tmp_path / "vocab.txt")
    head = family.classifiers["sequence_classification"]
    task = Classification(small_of(family), 3, classifier=head)
    objective = adapt(task, AdapterConfig(kind="lora", rank=2, alpha=3.0), task.new_groups)
    mesh = sharding.make_mesh()
    state = init_state(objective, optax.identity(), mesh, 0, given=draw_parameters(task))
    rng = np.random.default_rng(1)
    trained = {key: rng.normal(size=x.shape).astype(np.float32) for key, x in flatten(state.params).items()}
    assert any("_lora_" in key for key in trained) and objective.targets
    stored = {"params": nest(jax.tree.map(jax.numpy.asarray, trained)), "frozen": state.frozen}
    joined = flatten(objective.join(stored["params"], state.frozen))
    with run_directory.WorkDir(tmp_path / "run") as held:
        run = {"command": "finetune", "config": {"model": task.config.to_dict(), "init_from": "base"}}
        run |= {"labels": ["a", "b", "c"], "head": "sequence_classification"}
        held.open_run(run | {"vocabulary": tokenizer.settings()}, {})
        held.copy_vocabulary(tokenizer.path)
        keeper = checkpoint.Checkpointer(held.checkpoints)
        keeper.save(3, stored)
        keeper.close()

    output = tmp_path / "exported"
    conversion.convert(str(tmp_path / "run"), str(output), "huggingface", **QUIET)
    wanted = sharding.abstract_replicated(task.init_shapes, mesh)
    for path in (tmp_path / "run", output):
        model = convert.load(path, **QUIET)
        assert model.params.keys() == joined.keys() and model.config.model_type == name
        loaded, report = convert.load_params(path, wanted, **QUIET)
        assert not report.new and not report.unused
        for found in (model.params, flatten(loaded)):
            for key, x in joined.items():
                np.testing.assert_allclose(found[key], x, rtol=1e-6, atol=1e-6, err_msg=key)
