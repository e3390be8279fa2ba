"""A tiny ELECTRA and a tiny DeBERTa v3 from records to a fine-tuned model: resumed, exported."""

import json
import math

import jax
import numpy as np
import pytest
from support import fine_tuned, lowering, processes
from support.conversions import check_equal

from bert_jax import checkpoint, cli, convert
from bert_jax.checkpoint.leaves import flatten, nest
from bert_jax.convert.formats import work_directory
from bert_jax.models import parameters
from bert_jax.objectives.masked_lm import MaskedLM
from bert_jax.runs import pretrain
from bert_jax.settings import config_files, pretrain_config
from bert_jax.training import flops

CONFIG = processes.CONFIG.with_name("electra_tiny.py")
FIELDS = {
    "config": CONFIG, "steps": 6, "checkpoint.every": 3, "optimizer.warmup_steps": 2, "eval.every": 6,
    "model.embedding_size": 24, "replaced_tokens.generator_hidden_size": 16,
}  # fmt: skip


def command(workdir, records, **fields):
    return processes.command(workdir, records, **FIELDS | fields)


@pytest.fixture(scope="module")
def run(tmp_path_factory, records):
    workdir = tmp_path_factory.mktemp("electra") / "run"
    with processes.quick_compilation():
        assert cli.main(command(workdir, records)) == 0
    return workdir


DEBERTA = {
    "config": CONFIG.with_name("deberta_tiny.py"),
    "model.position_buckets": 8,
    "replaced_tokens.generator_layers": 3,
    "optimizer.warmup_fraction": 0.0,
}


@pytest.fixture(scope="module")
def deberta(tmp_path_factory, records):
    """The work directory of a run whose discriminator learns a difference from the generator's table."""
    workdir = tmp_path_factory.mktemp("deberta") / "run"
    with processes.quick_compilation():
        assert cli.main(command(workdir, records, **DEBERTA)) == 0
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
def test_the_sum_of_two_tables_is_handed_on(deberta, tmp_path):
    _, stored, _ = checkpoint.read_stored(deberta)
    difference, of_generator = stored[f"{TABLE}_difference"], stored[f"generator/{TABLE}"]
    assert TABLE not in stored and np.any(difference)
    model = convert.load(deberta)
    assert np.array_equal(model.params[TABLE], of_generator + difference)
    assert np.array_equal(model.generator.params[TABLE], of_generator)
    sizes = [each.config.num_hidden_layers for each in (model, model.generator)]
    assert sizes == [2, 3] and not any("difference" in name for name in model.params)
    wanted = nest({TABLE: jax.ShapeDtypeStruct(difference.shape, "float32")})
    loaded, _ = convert.load_params(deberta, wanted, ignore="encoder/.*")
    assert np.array_equal(flatten(loaded)[TABLE], model.params[TABLE])
    work_directory.FORMAT.write(model, tmp_path / "both")
    check_equal(convert.load(tmp_path / "both"), model)
    flags = ["convert", f"--input={deberta}", "--to=huggingface"]
    assert cli.main([*flags, f"--output={tmp_path / 'one'}"]) == 0
    exported = convert.load(tmp_path / "one")
    assert exported.head == "replaced_tokens" and exported.params.keys() == model.params.keys()
    assert np.array_equal(exported.params[TABLE], model.params[TABLE])
    # transformers has no mask decoder.
    assert cli.main([*flags, f"--output={tmp_path / 'other'}", "--head=masked_lm"]) == 2


@pytest.mark.long
def test_a_run_with_a_difference_resumes_bit_for_bit_and_continues(deberta, records, tmp_path, capsys):
    fine_tuned.assert_resumes_to_the_same_end(
        lambda copy: cli.main(command(copy, records, **DEBERTA)), deberta, tmp_path / "run", capsys, 3
    )
    still = {"init_from": deberta, "optimizer.learning_rate": 0.0}
    assert cli.main(command(tmp_path / "other", records, **DEBERTA | still)) == 0
    model, other = convert.load(deberta), convert.load(tmp_path / "other")
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
    "name, words, counts",
    [
        ("electra:small", 30_522, 14_196_219),
        ("electra:base", 30_522, 119_386_427),
        ("electra:large", 30_522, 354_655_291),
        # The generator and the discriminator of Microsoft's sizes, each with a table of words.
        ("deberta_v3:xsmall", 128_100, 131_339_749),
        ("deberta_v3:small", 128_100, 263_051_365),
        ("deberta_v3:base", 128_100, 326_842_213),
        ("deberta_v3:large", 128_100, 719_626_341),
    ],
)
def test_the_configs_have_the_parameters_of_both_networks(name, words, counts):
    fields = config_files.load(f"pretrain/{name}")
    fields.model.vocab_size = words
    config = pretrain_config.pretraining(fields)
    masked_lm = MaskedLM(config.model.encoder(), None, None, next_sentence_head=False)
    objective = pretrain.make_objective(config, masked_lm, 128)
    shapes = parameters.parameter_shapes(objective.init_shapes)
    assert sum(map(math.prod, shapes.values())) == counts
    row = flops.row_flops(objective)(128, 19, 1)
    alone = flops.RowFlops.of(masked_lm)(128, 0, 0)
    generator = (0.05, 0.5) if "electra" in name else (0.6, 1.3)  # of half the layers, and many words
    assert generator[0] * alone < row - alone < generator[1] * alone
