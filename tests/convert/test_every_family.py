"""The table in docs/families.md states correctly what works with checkpoints of each family."""

import io
import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import sentencepiece

from bert_jax import cli, convert
from bert_jax.convert import families, surgery
from bert_jax.convert.param_mapping import HUGGINGFACE
from bert_jax.errors import UserError
from bert_jax.parallel import sharding
from bert_jax.runs import benchmark, pretrain
from bert_jax.settings import config_files, defaults, pretrain_config
from bert_jax.training.optimizers import make_optimizer
from bert_jax.training.state import abstract_state

pytestmark = pytest.mark.usefixtures("quick_compilation")

DATA = Path(__file__).parents[1] / "testdata"
PAGE = Path(__file__).parents[2] / "docs" / "families.md"
TEXTS = ["the cat sat on the mat", "a dog ran", "the mat sat on a dog", "a cat ran on"]
QUIET = {"log": lambda line: None}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """{model_type: folder of a tiny checkpoint with a masked LM head}, in the format of transformers."""
    made = tmp_path_factory.mktemp("folders")
    found = {name: DATA / name / "masked_lm" for name in families.FAMILIES if (DATA / name).exists()}
    found["bert"] = shutil.copytree(DATA / "goldens" / "pretraining", made / "bert")
    shutil.copy(DATA / "distilbert" / "masked_lm" / "vocab.txt", found["bert"])
    found["xlm-roberta"] = shutil.copytree(found["roberta"], made / "xlm-roberta")
    for name in ("vocab.json", "merges.txt"):
        (found["xlm-roberta"] / name).unlink()
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(TEXTS), model_writer=model, vocab_size=40, hard_vocab_limit=False,
        minloglevel=2, unk_id=0, bos_id=1, eos_id=2, pad_id=-1,
    )  # fmt: skip
    (found["xlm-roberta"] / "sentencepiece.bpe.model").write_bytes(model.getvalue())
    config = json.loads((found["roberta"] / "config.json").read_text())
    config |= {"model_type": "xlm-roberta", "architectures": ["XLMRobertaForMaskedLM"]}
    (found["xlm-roberta"] / "config.json").write_text(json.dumps(config))
    assert found.keys() == families.FAMILIES.keys()
    return found


def run(*arguments):
    """Runs a command; raises UserError if it rejects its arguments."""
    code = cli.main(list(map(str, arguments)))
    if code == 2:
        raise UserError(f"bert-jax {arguments[0]}")
    assert code == 0


def fills_masks(folder, tmp_path):
    mask = convert.load(folder, **QUIET).tokenizer.special_tokens["mask"]
    run("fill-mask", f"--model={folder}", f"the {mask} dog")


def embeds(folder, tmp_path):
    (tmp_path / "texts.txt").write_text("\n".join(TEXTS))
    run("embed", f"--model={folder}", f"--input={tmp_path}/texts.txt", f"--output={tmp_path}/out.npy")
    assert np.isfinite(np.load(tmp_path / "out.npy")).all()


def starts_pretraining(folder, tmp_path):
    """Pre-training takes all encoder and masked LM head parameters from the checkpoint."""
    config = defaults.pretrain("tiny")
    config.init_from = str(folder)
    config, _ = pretrain.adopt_architecture(pretrain_config.pretraining(config), ())
    task = benchmark.make_masked_lm(config.model.encoder(), 8, next_sentence=False)
    optimizer, _ = make_optimizer(config.optimizer, 20_000, task)
    abstract = abstract_state(task, optimizer, sharding.make_mesh()).params
    _, report = convert.load_params(str(folder), abstract, **QUIET)
    assert not report.new and report.loaded


def chooses_layers(folder, tmp_path):
    """Layers 0 and 1 of the result are the first and the last layer, by their names in the files."""
    model = convert.load(folder, **QUIET)
    depth = model.config.num_hidden_layers
    chosen = surgery.select_layers(model, [0, depth - 1])
    before, after = (
        one.family.to_files(one.params, one.config, HUGGINGFACE, one.head) for one in (model, chosen)
    )
    assert chosen.config.num_hidden_layers == 2
    moved = [name for name in after if re.search(r"layers?\.1\.", name)]
    assert moved
    for name in moved:
        other = re.sub(r"(layers?)\.1\.", rf"\1.{depth - 1}.", name)
        np.testing.assert_array_equal(after[name], before[other], err_msg=name)
    assert chosen.config.is_local(1) == model.config.is_local(depth - 1)


FINE_TUNED = ("sequence_classification", "token_classification", "question_answering", "multiple_choice")
KINDS = {"WordPiece": "wordpiece", "byte-level BPE": "bpe", "SentencePiece": "sentencepiece"}
# Table columns that depend on the family record; test_goldens.py tests `convert` to Hugging Face and back.
FACTS = {
    "TF1 files": lambda family: family.tensorflow is not None,
    "sentence-pair head": lambda family: "pretraining" in family.heads,
    "pooler": lambda family: "pooler" in family.allowed("none"),
    "`--add_tokens`": lambda family: family.tokenizer.kind == "wordpiece",
}
EVERYWHERE = (fills_masks, embeds, starts_pretraining)


def rows():
    """Returns {model_type: {column: cell}} of the first table of the page."""
    lines = PAGE.read_text().partition("\n|")[2].partition("\n\n")[0].splitlines()
    header, _, *cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    records = [dict(zip(header, row, strict=True)) for row in cells]
    return {record["`model_type`"].strip("`"): record for record in records}


def test_the_table_has_every_family():
    assert rows().keys() == families.FAMILIES.keys()


@pytest.mark.parametrize("family", families.FAMILIES.values(), ids=lambda family: family.name)
def test_a_row_of_the_table(family):
    row = rows()[family.model_type]
    assert (row["family"], KINDS[row["tokenizer"]]) == (family.name, family.tokenizer.kind)
    assert {name: row[name] == "yes" for name in FACTS} == {name: has(family) for name, has in FACTS.items()}
    for folder in ("pretrain/", "finetune/"):
        configs = {folder + name for name in re.findall(r"\w+", row[f"`{folder}`"])}
        assert configs <= {*config_files.names()}


@pytest.mark.parametrize("family", families.FAMILIES.values(), ids=lambda family: family.name)
def test_every_family_has_the_heads_of_fine_tuning(family):
    assert {*FINE_TUNED} <= family.heads.keys()


@pytest.mark.parametrize("family", families.FAMILIES)
@pytest.mark.parametrize("feature", EVERYWHERE)
def test_a_feature_of_every_family(folders, tmp_path, feature, family):
    feature(folders[family], tmp_path)


@pytest.mark.parametrize("family", families.FAMILIES)
def test_layers_are_chosen_where_the_table_says(folders, tmp_path, family):
    if rows()[family]["`--layers`"] == "yes":
        chooses_layers(folders[family], tmp_path)
    else:
        with pytest.raises(UserError):
            chooses_layers(folders[family], tmp_path)
