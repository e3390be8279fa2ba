"""The confusion matrix of each evaluation of a fine-tuning: a picture."""

import shutil

import numpy as np
import pytest
from matplotlib import image
from support import tensorboard
from support.fine_tuned import command
from support.trackers import service  # noqa: F401

from bert_jax import cli
from bert_jax.tasks import error_analysis

pytestmark = pytest.mark.usefixtures("quick_compilation")

FLAGS = (
    "--config.max_seq_length=16",
    "--config.batch_size=16",
    "--config.epochs=2",
    "--config.eval.every=2",
    "--config.checkpoint.every=2",
    "--config.checkpoint.keep=2",
)
TAG = "eval/confusions"


@pytest.fixture(scope="module")
def drawn(tmp_path_factory, files, pretrained):
    workdir = tmp_path_factory.mktemp("drawn") / "run"
    assert cli.main(command(files, workdir, pretrained, *FLAGS, label="color")) == 0
    return workdir


@pytest.mark.long
def test_each_evaluation_has_a_picture(drawn, tmp_path):
    pictures = [(step, png) for tag, step, png in tensorboard.read(drawn / "tensorboard") if tag == TAG]
    assert [step for step, _ in pictures] == [2, 4]
    for _, png in pictures:
        (tmp_path / "picture.png").write_bytes(png)
        pixels = image.imread(tmp_path / "picture.png")
        assert min(pixels.shape[:2]) > 300 and len(np.unique(pixels.reshape(-1, 4), axis=0)) > 20
    assert not (drawn / "tables.jsonl").exists()


@pytest.mark.long
def test_a_run_that_resumes_has_each_step_once(drawn, files, pretrained, tmp_path, capsys):
    other = shutil.copytree(drawn, tmp_path / "run")
    shutil.rmtree(other / "checkpoints" / "4")
    assert cli.main(command(files, other, pretrained, *FLAGS, label="color")) == 0
    assert "resumed from step 2" in capsys.readouterr().out
    assert tensorboard.steps(other / "tensorboard", TAG) == [2, 4]


@pytest.mark.long
def test_trackers_get_it(service, files, pretrained, tmp_path):  # noqa: F811
    name, found = service
    more = [*FLAGS, f"--config.trackers={name}"]
    assert cli.main(command(files, tmp_path / "run", pretrained, *more, label="color")) == 0
    assert [(step, tag) for step, tag, _ in found.images] == [(2, TAG), (4, TAG)]


def test_the_counts():
    targets, predicted = np.random.default_rng(0).integers(0, 3, (2, 50))
    found = error_analysis.Confusions.of(targets, predicted, ("a", "b", "c"))
    for row in range(3):
        for column in range(3):
            pairs = zip(targets, predicted, strict=True)
            assert found.counts[row, column] == sum(pair == (row, column) for pair in pairs)
    assert error_analysis.Confusions.of(targets, predicted, [str(i) for i in range(41)]) is None
