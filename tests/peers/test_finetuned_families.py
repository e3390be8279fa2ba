"""What is trained here from a model of transformers is loaded there whole, and predicts the same."""

from pathlib import Path

import numpy as np
import pytest
from support import lowering, processes

from bert_jax import cli, convert
from bert_jax.convert import HEADS, parity

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.peer

BOUND = 1e-5
TASKS = {
    "sequence_classification": ("classification", "classification"),
    "token_classification": ("tagging", "tagging"),
    "question_answering": ("squad", "question_answering"),
    "multiple_choice": ("multiple_choice", "multiple_choice"),
}


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return lowering.write_files(tmp_path_factory.mktemp("files"))


@pytest.fixture(scope="module")
def distilbert(files, tmp_path_factory):
    """A folder of a random DistilBertForMaskedLM with the vocabulary of the files."""
    torch.manual_seed(0)
    config = transformers.DistilBertConfig(
        vocab_size=100, dim=32, n_layers=2, n_heads=2, hidden_dim=48, max_position_embeddings=128,
        seq_classif_dropout=0.3,
    )  # fmt: skip
    folder = tmp_path_factory.mktemp("distilbert")
    transformers.DistilBertForMaskedLM(config).save_pretrained(folder)
    (folder / "vocab.txt").write_text(Path(files["vocabulary"]).read_text())
    return folder


def outputs_there(head, folder):
    """{name: array} of the model of transformers for `parity.random_inputs`, and its configuration."""
    cls = getattr(transformers, HEADS[head].auto_class)
    model, info = cls.from_pretrained(folder, output_loading_info=True)
    assert not any(info[name] for name in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    inputs = parity.random_inputs(convert.load(folder).config)
    given = {"input_ids": torch.tensor(inputs["input_ids"]), "attention_mask": torch.tensor(inputs["mask"])}
    if getattr(model.config, "type_vocab_size", 0) > 1:
        given["token_type_ids"] = torch.tensor(inputs["token_type_ids"])
    if head == "multiple_choice":
        given = {name: x[None] for name, x in given.items()}
    with torch.no_grad():
        found = model.eval()(**given)
    if head == "question_answering":
        outputs = {"qa": torch.stack([found.start_logits, found.end_logits], dim=-1).numpy()}
    elif head == "multiple_choice":
        outputs = {"classifier": found.logits.numpy().T}
    else:
        names = {"masked_lm": "mlm", "replaced_tokens": "discriminator"}
        outputs = {names.get(head, "classifier"): found.logits.numpy()}
    return parity.without_padding(outputs, inputs["mask"]), model.config


def check(head, run, folder):
    assert cli.main(["convert", f"--input={run}", f"--output={folder}", "--to=huggingface"]) == 0
    ours = parity.flax_outputs(convert.load(run))
    theirs, config = outputs_there(head, folder)
    for name, array in theirs.items():
        assert np.std(array) > 0.01
        assert np.max(np.abs(array - ours[name])) < BOUND, name
    return config


@pytest.mark.parametrize("head", TASKS)
def test_a_fine_tuned_distilbert(files, distilbert, tmp_path, head):
    config, kind = TASKS[head]
    fields = dict(init_from=distilbert, epochs=2, batch_size=8, max_seq_length=64)
    fields |= {f"data.{name}": value for name, value in files[kind].items()} | {
        "optimizer.learning_rate": 1e-2
    }
    if head == "question_answering":
        fields |= {"doc_stride": 16, "max_query_length": 8}
    flags = [f"--config.{name}={value}" for name, value in fields.items()]
    run = tmp_path / "run"
    assert cli.main(["finetune", f"--config=finetune/{config}", f"--workdir={run}", *flags]) == 0
    assert convert.load(run).head == head
    config = check(head, run, tmp_path / "out")
    assert config.seq_classif_dropout == 0.3


def go_on(config, start, folder, **fields):
    """A run of 20 steps that is initialized from a folder of transformers."""
    records, run = processes.write_records(folder / "records"), folder / "run"
    fields = {
        "data.dir": records,
        "init_from": start,
        "batch_size": 8,
        "steps": 20,
        "optimizer.warmup_steps": 2,
        "optimizer.learning_rate": 1e-2,
    } | fields
    flags = [f"--config.{name}={value}" for name, value in fields.items()]
    assert cli.main(["pretrain", f"--config={config}", f"--workdir={run}", *flags]) == 0
    return run


def test_an_electra_whose_pre_training_goes_on(files, tmp_path):
    """What it starts from has the discriminator alone; the run has a generator as well."""
    torch.manual_seed(0)
    config = transformers.ElectraConfig(
        vocab_size=100, embedding_size=24, hidden_size=32, num_hidden_layers=2, num_attention_heads=2,
        intermediate_size=48, max_position_embeddings=128,
    )  # fmt: skip
    model = transformers.ElectraForPreTraining(config)
    with torch.no_grad():  # else a discriminator says the same of every token
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.normal_(0, 0.2)
    model.save_pretrained(tmp_path / "start")
    (tmp_path / "start" / "vocab.txt").write_text(Path(files["vocabulary"]).read_text())
    fields = {
        "init_ignore": "generator/.*",
        "replaced_tokens.generator_hidden_size": 16,
        "optimizer.learning_rate": 1e-3,
    }
    run = go_on("pretrain/electra_tiny", tmp_path / "start", tmp_path, **fields)
    check("replaced_tokens", run, tmp_path / "out")
    assert convert.load(run).generator.config.hidden_size == 16
