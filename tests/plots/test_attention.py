import numpy as np
import pytest
from PIL import Image
from support.embeddings import tiny_model

from bert_jax import cli
from bert_jax.convert.formats import work_directory
from bert_jax.errors import UserError
from bert_jax.plots import attention


def some_maps(layers=12, heads=12, tokens=11):
    logits = np.random.default_rng(0).gumbel(0, 2, (layers, heads, tokens, tokens))
    weights = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    return attention.AttentionMaps(["[CLS]", *["$unaffordable$"] * (tokens - 2), "[SEP]"], 4, weights)


def drawn(path):
    with Image.open(path) as image:
        pixels = np.asarray(image.convert("L"))
    assert 0.01 < np.mean(pixels < 200) < 0.6  # neither empty nor black
    return pixels.shape


@pytest.mark.long
@pytest.mark.parametrize(
    "layer, head, least, most",
    [
        ("all", "all", (1700, 1800), (2300, 2300)),
        ("3", "all", (900, 1300), (1800, 2200)),
        ("all", "-1", (900, 1300), (1800, 2200)),
        ("12", "1", (600, 600), (1200, 1200)),
    ],
    ids=["thumbnails", "one layer", "one head", "one square"],
)
def test_pictures(tmp_path, layer, head, least, most):
    path = tmp_path / "deep" / "attention.png"
    attention.plot_attention(some_maps(), str(path), layer, head, "a $1 and a $2 text")
    shape = drawn(path)
    assert all(a <= b <= c for a, b, c in zip(least, shape, most, strict=True)), shape


def test_numbers_of_layers():
    for number, expected in (("all", [1, 2, 3]), ("1", [1]), ("-1", [3]), ("-3", [1])):
        assert attention.choose(number, 3, "layer") == expected
    for number in ("0", "4", "-4", "x", ""):
        with pytest.raises(UserError, match=f"--head={number}: expected a number from 1 to 3, or all"):
            attention.choose(number, 3, "head")


@pytest.mark.long
def test_the_command(tmp_path, capsys):
    model = tmp_path / "model"
    model.mkdir()
    work_directory.FORMAT.write(tiny_model(tmp_path), model)
    flags = [f"--model={model}", "--text=the cat is big", f"--output={tmp_path}/a.png"]
    assert cli.main(["plot", *flags, "--layer=2", "--text_b=a dog"]) == 0
    assert f"wrote {tmp_path}/a.png (9 tokens)" in capsys.readouterr().out
    drawn(tmp_path / "a.png")
    assert cli.main(["plot", *flags, "--layer=4"]) == 2
    assert "--layer=4: expected a number from 1 to 3, or all" in capsys.readouterr().err
