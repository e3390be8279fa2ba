"""Tokenizers of Hugging Face folders that are not those of the family of the model."""

import json

from support import vocabularies

from bert_jax import tokenization
from bert_jax.convert import conversion


def convert(source, output):
    """Converts a folder, and returns its warnings and the written tokenizer_config.json."""
    lines = []
    conversion.convert(str(source), str(output), "huggingface", log=lines.append)
    warnings = [line for line in lines if line.startswith("warning: ")]
    return warnings, json.loads((output / "tokenizer_config.json").read_text())


def test_a_bert_with_the_ids_of_xlm_r(tmp_path):
    """Its class is that of the ids, since AlbertTokenizer gives the pieces other ids."""
    source = tmp_path / "source"
    source.mkdir()
    tokenizer = tokenization.load(vocabularies.fairseq_model(source))
    files = {"tokenizer_config.json": {"tokenizer_class": "XLMRobertaTokenizer"}}
    vocabularies.write_folder(source, "bert", tokenizer.vocab_size, files)
    warnings, settings = convert(source, tmp_path / "out")
    assert not warnings and settings["tokenizer_class"] == "XLMRobertaTokenizer"
    assert (tmp_path / "out" / "sentencepiece.bpe.model").exists()
