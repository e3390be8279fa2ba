"""Ids and rows equal transformers' if a model has a tokenizer of a different family."""

from pathlib import Path

import pytest
from support import vocabularies

from bert_jax import tokenization
from bert_jax.convert import conversion, loading
from bert_jax.convert.formats import huggingface
from bert_jax.tokenization import byte_bpe, templates

transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.peer

BPE = Path(__file__).resolve().parents[1] / "testdata" / "bpe"
TEXTS = ["the cat sat on a mat", "One dog ran, with it!", "caf\u00e9 in  France", ""]


def check_ids(source, output):
    """Asserts that a folder and its converted folder give the same ids in both libraries."""
    conversion.convert(str(source), str(output), "huggingface", log=lambda line: None)
    theirs, written = map(transformers.AutoTokenizer.from_pretrained, (source, output))
    expected = theirs(TEXTS, add_special_tokens=False)["input_ids"]
    for folder in (source, output):
        ours = loading.load(str(folder), log=lambda line: None).tokenizer
        assert ours.encode_batch(TEXTS) == expected
        row = ours.layout.row(*ours.encode_batch(TEXTS[:2])).tolist()
        assert row == theirs(*TEXTS[:2])["input_ids"] == written(*TEXTS[:2])["input_ids"]
    assert written(TEXTS)["input_ids"] == theirs(TEXTS)["input_ids"]


@pytest.fixture
def source(tmp_path):
    (tmp_path / "source").mkdir()
    return tmp_path / "source"


def test_a_bert_with_the_ids_of_xlm_r(source, tmp_path):
    size = tokenization.load(vocabularies.fairseq_model(source)).vocab_size
    files = {"tokenizer_config.json": {"tokenizer_class": "XLMRobertaTokenizer"}}
    vocabularies.write_folder(source, "bert", size, files)
    check_ids(source, tmp_path / "out")


@pytest.mark.parametrize("template", [templates.BERT, templates.ROBERTA])
def test_a_roberta_with_a_wordpiece_vocabulary(source, tmp_path, template):
    files = {"vocab.txt": vocabularies.VOCABULARY}
    vocabularies.write_folder(source, "roberta", len(vocabularies.WORDPIECES), files)
    model = loading.load(str(source), log=lambda line: None)
    tokenizer = tokenization.load(source / "vocab.txt", template=template)
    huggingface.FORMAT.write(model.replace(tokenizer=tokenizer), source)
    check_ids(source, tmp_path / "out")
    ids = transformers.AutoTokenizer.from_pretrained(source)("a", "a")["input_ids"]
    assert len(ids) == 2 + template.special_count(pair=True)


@pytest.mark.parametrize("name", ["RobertaTokenizer", "PreTrainedTokenizerFast"])
@pytest.mark.parametrize("stated", [None, False, True])
@pytest.mark.parametrize("given", [None, False, True])
def test_a_space_before_a_text(source, tmp_path, name, stated, given):
    """The settings of tokenizer_config.json and tokenizer.json, if it exists, decide as in transformers."""
    plain = tokenization.load(BPE)
    files = {"tokenizer_config.json": {"tokenizer_class": name}}
    if given is not None:
        files["tokenizer_config.json"]["add_prefix_space"] = given
    if stated is None and name != "RobertaTokenizer":
        pytest.skip("this class has no other file than tokenizer.json")
    if stated is None:
        files |= {name: (BPE / name).read_text("utf-8") for name in ("vocab.json", "merges.txt")}
    else:
        files["tokenizer.json"] = byte_bpe.with_prefix_space(plain.content, stated)
    vocabularies.write_folder(source, "roberta", plain.vocab_size, files)
    check_ids(source, tmp_path / "out")
