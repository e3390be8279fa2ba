"""Tokenizers of Hugging Face folders that are not those of the family of the model."""

import json

import pytest
from support import vocabularies

from bert_jax import tokenization
from bert_jax.convert import conversion, loading
from bert_jax.convert.formats import huggingface_export
from bert_jax.tokenization import byte_bpe_files, templates


@pytest.fixture
def source(tmp_path):
    (tmp_path / "source").mkdir()
    return tmp_path / "source"


def read(folder, **options):
    return loading.load(str(folder), **options)


def convert(source, output):
    """Converts a folder, and returns its warnings and the written tokenizer_config.json."""
    lines = []
    conversion.convert(str(source), str(output), "huggingface", log=lines.append)
    warnings = [line for line in lines if line.startswith("warning: ")]
    return warnings, json.loads((output / "tokenizer_config.json").read_text())


def test_a_bert_with_the_ids_of_xlm_r(source, tmp_path):
    """Its class is that of the ids, since AlbertTokenizer gives the pieces other ids; so are its rows."""
    tokenizer = tokenization.load(vocabularies.fairseq_model(source))
    files = {"tokenizer_config.json": {"tokenizer_class": "XLMRobertaTokenizer"}}
    vocabularies.write_folder(source, "bert", tokenizer.vocab_size, files)
    warnings, settings = convert(source, tmp_path / "out")
    assert not warnings and settings["tokenizer_class"] == "XLMRobertaTokenizer"
    assert (tmp_path / "out" / "sentencepiece.bpe.model").exists()
    assert read(source).tokenizer.template == read(tmp_path / "out").tokenizer.template == templates.ROBERTA


def test_rows_that_transformers_does_not_have_are_warned_of(source):
    """Runs of earlier versions have the rows of BERT with the ids of XLM-R."""
    tokenizer = tokenization.load(vocabularies.fairseq_model(source), template=templates.BERT)
    vocabularies.write_folder(source, "bert", tokenizer.vocab_size, {})
    warning = huggingface_export.tokenizer_warning(read(source).replace(tokenizer=tokenizer))
    assert "XLMRobertaTokenizer" in warning and repr(templates.BERT.pair) in warning


@pytest.mark.parametrize("stated", [None, templates.ROBERTA, templates.BERT])
def test_a_roberta_with_a_wordpiece_vocabulary(source, tmp_path, stated):
    """Its rows are those of tokenizer.json, else those of BertTokenizer."""
    files = {"vocab.txt": vocabularies.VOCABULARY, "tokenizer_config.json": {"do_lower_case": True}}
    if stated:
        special = {role: (f"[{role.upper()}]", i) for i, role in enumerate(("cls", "pad", "sep"))}
        files["tokenizer.json"] = vocabularies.wordpiece_json(
            post_processor=byte_bpe_files.with_special_tokens({}, special, stated)["post_processor"]
        )
    vocabularies.write_folder(source, "roberta", len(vocabularies.WORDPIECES), files)
    _, settings = convert(source, tmp_path / "out")
    expected = stated or templates.BERT
    assert read(source).tokenizer.template == read(tmp_path / "out").tokenizer.template == expected
    # The class in transformers that has these rows.
    name = "BertTokenizer" if expected == templates.BERT else "PreTrainedTokenizerFast"
    assert settings["tokenizer_class"] == name
    assert settings["model_input_names"] == ["input_ids", "attention_mask"]
