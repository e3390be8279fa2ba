"""The recipes of docs/python.md run as they stand, one after the other."""

import re
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import processes
from support.conversions import random_model

from bert_jax import tokenization
from bert_jax.convert.formats import work_directory
from bert_jax.errors import UserError
from bert_jax.models.config import EncoderConfig

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "python.md").read_text(encoding="utf-8")
RECIPES = re.findall(r"^## (.+?)\n.*?^```python\n(.*?)^```", PAGE, re.M | re.S)


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A working directory with runs/mini and records."""
    processes.write_records(tmp_path / "records", rows=16)
    tokenizer = tokenization.load(tmp_path / "records" / "vocab.txt")
    config = EncoderConfig(
        vocab_size=tokenizer.vocab_size,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=processes.LENGTH,
    )
    work_directory.FORMAT.write(random_model(config, tokenizer=tokenizer), tmp_path / "runs" / "mini")
    monkeypatch.chdir(tmp_path)


def check_hessian_product(names):
    """Compares a product of the Hessian and the parameters with a difference of gradients along them."""
    scorer, inputs, targets, params = (names[name] for name in ("scorer", "inputs", "targets", "params"))

    def loss(params):
        return jnp.mean(jnp.square(scorer.apply({"params": params}, **inputs) - targets))

    def slope(at):
        return jax.tree.reduce(jnp.add, jax.tree.map(jnp.vdot, jax.grad(loss)(at), params))

    product, step, gradient = jax.jit(jax.grad(slope))(params), 1e-3, jax.jit(jax.grad(loss))
    after, before = (gradient(jax.tree.map(lambda x, s=s: x * (1 + s), params)) for s in (step, -step))
    expected = jax.tree.map(lambda a, b: (a - b) / (2 * step), after, before)
    found, expected = (
        np.concatenate([x.ravel() for x in jax.tree.leaves(each)]) for each in (product, expected)
    )
    assert np.linalg.norm(expected) > 0
    np.testing.assert_allclose(found, expected, atol=0.01 * np.abs(expected).max())


def check_hidden_states(names):
    out = names["out"]
    assert out.tokens.shape == out.states.shape[:2] and out.pooled.shape == (2, 16)


def check_vectors(names):
    assert np.shape(names["vectors"]) == (2, 16)


def check_training(names):
    assert names["run"].scores.keys() == {"accuracy", "f1_macro"} and names["run"].history


def check_predictions(names):
    predict = names["classifier"].predict_rows
    found = predict(["a", {"review": "b"}, {"review": "c", "id": "x"}])
    assert all(row["prediction"] in ("good", "bad") for row in found)
    both = {"prediction", "probabilities"}
    assert [set(row) for row in found] == [both, both, both | {"id"}]
    for rows, message in (
        ([{"text": "a"}], "row 0: "),
        ([3], "row 0: "),
    ):
        with pytest.raises(UserError, match=message):
            predict(rows)


def check_scores(names):
    assert names["scores"].shape == (2,)


def check_losses(names):
    assert names["losses"][-1] < 0.7 * names["losses"][0]
    check_hessian_product(names)


def check_objective(names):
    assert names["objective"].weights({"lengths": np.array([3, 0, 2])}) == {"length": 2}
    assert names["state"].step == 0


def check_history(names):
    assert len(names["history"]) == names["state"].step == 3 and np.all(np.isfinite(names["history"]))


CHECKS = {
    "Hidden states": check_hidden_states,
    "Embeddings of many texts": check_vectors,
    "Training": check_training,
    "Predictions": check_predictions,
    "A new head": check_scores,
    "A custom training step": check_losses,
    "A new objective": check_objective,
    "Reading records": check_history,
}


def test_every_recipe_has_a_check():
    assert [title for title, _ in RECIPES] == [*CHECKS] and PAGE.count("```python") == len(CHECKS)


@pytest.mark.long
@pytest.mark.usefixtures("place")
def test_the_recipes_run():
    names: dict = {}
    for title, code in RECIPES:
        with processes.quick_compilation():
            exec(compile(code, title, "exec"), names)
        CHECKS[title](names)
