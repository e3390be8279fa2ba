"""A tiny ELECTRA from records to a fine-tuned model: resumed, exported."""

import json
import shutil

import jax
import numpy as np
import pytest
from support import lowering, processes
from support.conversions import check_equal

from bert_jax import checkpoint, cli, convert
from bert_jax.checkpoint.leaves import flatten, nest
from bert_jax.convert.formats import work_directory
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


DISENTANGLED = {"replaced_tokens.sharing": "gdes", "replaced_tokens.generator_layers": 1}


@pytest.fixture(scope="module")
def disentangled(tmp_path_factory, records):
    """The work directory of a run whose discriminator learns a difference from the generator's table."""
    workdir = tmp_path_factory.mktemp("disentangled") / "run"
    with processes.quick_compilation():
        assert cli.main(command(workdir, records, **DISENTANGLED)) == 0
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


TABLE = "encoder/embeddings/word_embeddings"


@pytest.mark.long
def test_the_sum_of_two_tables_is_handed_on(disentangled, tmp_path):
    _, stored, _ = checkpoint.read_stored(disentangled)
    difference, of_generator = stored[f"{TABLE}_difference"], stored[f"generator/{TABLE}"]
    assert TABLE not in stored and np.any(difference)
    model = convert.load(disentangled)
    assert np.array_equal(model.params[TABLE], of_generator + difference)
    assert np.array_equal(model.generator.params[TABLE], of_generator)
    sizes = [each.config.num_hidden_layers for each in (model, model.generator)]
    assert sizes == [2, 1] and not any("difference" in name for name in model.params)
    wanted = nest({TABLE: jax.ShapeDtypeStruct(difference.shape, "float32")})
    loaded, _ = convert.load_params(disentangled, wanted, ignore="encoder/.*")
    assert np.array_equal(flatten(loaded)[TABLE], model.params[TABLE])
    work_directory.FORMAT.write(model, tmp_path / "both")
    check_equal(convert.load(tmp_path / "both"), model)
    for head, like in (("replaced_tokens", model), ("masked_lm", model.generator)):
        flags = ["convert", f"--input={disentangled}", f"--output={tmp_path / head}", "--to=huggingface"]
        assert cli.main([*flags, f"--head={head}"]) == 0
        assert np.array_equal(convert.load(tmp_path / head).params[TABLE], like.params[TABLE])


@pytest.mark.long
def test_a_run_with_a_difference_resumes_bit_for_bit_and_continues(disentangled, records, tmp_path):
    workdir = tmp_path / "run"
    shutil.copytree(disentangled, workdir)
    shutil.rmtree(workdir / "checkpoints" / "6")
    assert cli.main(command(workdir, records, **DISENTANGLED)) == 0
    steps = [checkpoint.verify(each / "checkpoints" / "6") for each in (workdir, disentangled)]
    assert steps[0] == steps[1]
    still = {"init_from": disentangled, "optimizer.learning_rate": 0.0}
    assert cli.main(command(tmp_path / "other", records, **DISENTANGLED | still)) == 0
    model, other = convert.load(disentangled), convert.load(tmp_path / "other")
    for one, like in ((other, model), (other.generator, model.generator)):
        for name, x in like.params.items():
            np.testing.assert_allclose(one.params[name], x, rtol=1e-6, atol=1e-8)


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
