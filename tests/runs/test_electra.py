"""A tiny ELECTRA from records to a fine-tuned model: resumed, exported."""

import json

import numpy as np
import pytest
from support import lowering, processes

from bert_jax import cli, convert
from bert_jax.runs import pretrain
from bert_jax.settings import config_files, pretrain_config
from bert_jax.training import flops

FIELDS = {"steps": 6, "checkpoint.every": 3, "optimizer.warmup_steps": 2, "eval.every": 6}
CONFIG = processes.CONFIG.with_name("electra_tiny.py")


def command(workdir, records, **fields):
    shape = {name: value for name, value in processes.TINY.items() if name.startswith("model.")}
    shape["model.embedding_size"], shape["replaced_tokens.generator_hidden_size"] = 24, 16
    fields = shape | {"batch_size": 8, "log_every": 1, "data.dir": records} | FIELDS | fields
    return [
        "pretrain",
        f"--config={CONFIG}",
        f"--workdir={workdir}",
        *(f"--config.{name}={value}" for name, value in fields.items()),
    ]


@pytest.fixture(scope="module")
def run(tmp_path_factory, records):
    workdir = tmp_path_factory.mktemp("electra") / "run"
    with processes.quick_compilation():
        assert cli.main(command(workdir, records)) == 0
    return workdir


@pytest.fixture(scope="module")
def finetuned(run, tmp_path_factory):
    folder = tmp_path_factory.mktemp("finetuned")
    files = lowering.write_files(folder)
    fields = {f"data.{name}": value for name, value in files["classification"].items()}
    fields |= {"init_from": run, "epochs": 1, "batch_size": 8, "max_seq_length": 32}
    flags = [f"--config.{name}={value}" for name, value in fields.items()]
    workdir = folder / "run"
    with processes.quick_compilation():
        code = cli.main(["finetune", "--config=finetune/classification", f"--workdir={workdir}", *flags])
    assert code == 0
    return workdir


@pytest.mark.long
def test_a_run_holds_two_networks(run, tmp_path, capsys):
    model = convert.load(run)
    assert (model.head, model.generator.head) == ("replaced_tokens", "masked_lm")
    assert (model.config.hidden_size, model.generator.config.hidden_size) == (32, 16)
    words = "encoder/embeddings/word_embeddings"
    assert np.array_equal(model.params[words], model.generator.params[words])
    projection = "encoder/embeddings/projection/kernel"
    assert (model.params[projection].shape, model.generator.params[projection].shape) == ((24, 32), (24, 16))
    for head, flags in (("replaced_tokens", []), ("masked_lm", ["--head=masked_lm"])):
        folder = tmp_path / head
        assert cli.main(["convert", f"--input={run}", f"--output={folder}", "--to=huggingface", *flags]) == 0
        assert convert.load(folder).head == head
    capsys.readouterr()
    assert cli.main(["fill-mask", f"--model={run}", "word1 [MASK]", "--json"]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["masks"][0]
    assert cli.main(["inspect", str(run)]) == 0
    assert "parts: discriminator, encoder, generator" in capsys.readouterr().out


@pytest.mark.long
def test_fine_tuning_takes_the_discriminator(run, finetuned):
    model = convert.load(finetuned)
    assert (model.head, model.config.model_type) == ("sequence_classification", "electra")
    assert model.config.hidden_size == 32 and model.generator is None
    assert set(model.groups) == {"encoder", "head", "classifier"}


@pytest.mark.parametrize(
    "size, counts", [("small", 14_196_219), ("base", 119_386_427), ("large", 354_655_291)]
)
def test_the_configs_have_the_published_parameters(size, counts):
    """Of both networks together."""
    import jax

    from bert_jax.models import parameters
    from bert_jax.objectives.masked_lm import MaskedLM

    fields = config_files.load(f"pretrain/electra:{size}")
    fields.model.vocab_size = 30522
    config = pretrain_config.pretraining(fields)
    model = config.model.encoder()
    objective = pretrain.make_objective(config, MaskedLM(model, None, None, next_sentence_head=False), 128)
    assert parameters.count(jax.eval_shape(objective.init, jax.random.key(0))) == counts
    row = flops.row_flops(objective)(128, 19, 1)
    alone = flops.RowFlops.of(MaskedLM(model, None, None, next_sentence_head=False))(128, 0, 0)
    assert 1.05 * alone < row < 1.5 * alone
