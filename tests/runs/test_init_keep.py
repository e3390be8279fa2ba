"""Fine-tuning from scratch that keeps some parameters of the checkpoint."""

import json

import numpy as np
import pytest
from support import fine_tuned
from support.pretrained import write
from support.stored_params import stored_params

from bert_jax import cli

EMBEDDINGS = "encoder/embeddings/.*"


def arguments(files, workdir, pretrained, *more):
    flags = ("--config.max_seq_length=16", "--config.epochs=1", "--config.batch_size=16")
    # Nothing is learned, so that what is saved is how the run began.
    flags += ("--config.optimizer.learning_rate=0", "--config.from_scratch=true")
    return fine_tuned.command(files, workdir, pretrained, *flags, *more, label="color")


@pytest.fixture(scope="module")
def pretrained(tmp_path_factory, vocabulary):
    return write(tmp_path_factory.mktemp("pretrained"), vocabulary, num_hidden_layers=2)


@pytest.mark.slow
def test_the_embeddings_are_kept_and_the_rest_is_drawn_as_from_scratch(files, pretrained, tmp_path, capsys):
    assert cli.main(arguments(files, tmp_path / "scratch", pretrained)) == 0
    kept = arguments(files, tmp_path / "kept", pretrained, f"--config.init_keep={EMBEDDINGS}")
    assert cli.main(kept) == 0
    assert "from scratch, but for 5 tensors of " in capsys.readouterr().out
    theirs, drawn, found = (
        stored_params(path) for path in (pretrained, tmp_path / "scratch", tmp_path / "kept")
    )
    assert found.keys() == drawn.keys()
    for name, array in found.items():
        of_embeddings = name.startswith("encoder/embeddings/")
        np.testing.assert_array_equal(array, (theirs if of_embeddings else drawn)[name], err_msg=name)
    words = "encoder/embeddings/word_embeddings"
    assert np.any(np.asarray(found[words]) != np.asarray(drawn[words]))
    report = json.loads((tmp_path / "kept" / "initialized.json").read_text())
    assert len(report["loaded"]) == 5 and set(report["loaded"]) | set(report["new"]) == set(found)
    assert {"encoder", "pooler", "mlm", "nsp"} == {name.split("/")[0] for name in report["unused"]}
