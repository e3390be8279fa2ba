"""Ids and rows here and in transformers, where the tokenizer is not that of the family of the model."""

import pytest
from support import vocabularies

from bert_jax import tokenization
from bert_jax.convert import conversion, loading

transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.peer

TEXTS = ["the cat sat on a mat", "One dog ran, with it!", "caf\u00e9 in  France", ""]


def check_ids(source, output):
    """The tokenizer of a folder, here and there, has the same ids as that of the converted folder."""
    conversion.convert(str(source), str(output), "huggingface", log=lambda line: None)
    theirs, written = map(transformers.AutoTokenizer.from_pretrained, (source, output))
    expected = theirs(TEXTS, add_special_tokens=False)["input_ids"]
    for folder in (source, output):
        ours = loading.load(str(folder), log=lambda line: None).tokenizer
        assert ours.encode_batch(TEXTS) == expected
    assert written(TEXTS)["input_ids"] == theirs(TEXTS)["input_ids"]


def test_a_bert_with_the_ids_of_xlm_r(tmp_path):
    source = tmp_path / "source"
    source.mkdir()
    size = tokenization.load(vocabularies.fairseq_model(source)).vocab_size
    files = {"tokenizer_config.json": {"tokenizer_class": "XLMRobertaTokenizer"}}
    vocabularies.write_folder(source, "bert", size, files)
    check_ids(source, tmp_path / "out")
