"""Hugging Face folders whose tokenizer differs from the usual one of the model family."""

import json
from pathlib import Path

import pytest
from support import vocabularies

from bert_jax import tokenization
from bert_jax.convert import conversion, loading
from bert_jax.convert.formats import huggingface
from bert_jax.tokenization import byte_bpe, templates


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
    """The ids determine class and row format, since AlbertTokenizer would give the subwords other ids."""
    tokenizer = tokenization.load(vocabularies.fairseq_model(source))
    files = {"tokenizer_config.json": {"tokenizer_class": "XLMRobertaTokenizer"}}
    vocabularies.write_folder(source, "bert", tokenizer.vocab_size, files)
    warnings, settings = convert(source, tmp_path / "out")
    assert not warnings and settings["tokenizer_class"] == "XLMRobertaTokenizer"
    assert (tmp_path / "out" / "sentencepiece.bpe.model").exists()
    assert read(source).tokenizer.template == read(tmp_path / "out").tokenizer.template == templates.ROBERTA


@pytest.mark.parametrize("stated", [None, templates.ROBERTA, templates.BERT])
def test_a_roberta_with_a_wordpiece_vocabulary(source, tmp_path, stated):
    """The row format comes from tokenizer.json, or from BertTokenizer if there is none."""
    files = {"vocab.txt": vocabularies.VOCABULARY, "tokenizer_config.json": {"do_lower_case": True}}
    if stated:
        files["tokenizer.json"] = vocabularies.wordpiece_json(post_processor=_post_processor(stated))
    vocabularies.write_folder(source, "roberta", len(vocabularies.WORDPIECES), files)
    _, settings = convert(source, tmp_path / "out")
    expected = stated or templates.BERT
    assert read(source).tokenizer.template == read(tmp_path / "out").tokenizer.template == expected
    # The class in transformers with this row format.
    name = "BertTokenizer" if expected == templates.BERT else "PreTrainedTokenizerFast"
    assert settings["tokenizer_class"] == name
    assert settings["model_input_names"] == ["input_ids", "attention_mask"]


def _post_processor(template):
    special = {"cls": ("[CLS]", 0), "sep": ("[SEP]", 2)}
    return json.loads(byte_bpe.template_processing(template, special).__getstate__())


BPE = Path(__file__).resolve().parents[2] / "testdata" / "bpe"
SPACED, NOT_SPACED = {"add_prefix_space": True}, {"add_prefix_space": False}
ROBERTA, FAST = {"tokenizer_class": "RobertaTokenizer"}, {"tokenizer_class": "PreTrainedTokenizerFast"}
# The settings in tokenizer_config.json and, if there is one, tokenizer.json, and the result in transformers.
SPACES = {
    "two files": (ROBERTA | SPACED, None, True),
    "settings before tokenizer.json": (ROBERTA | SPACED, False, True),
    "tokenizer.json alone": (FAST | NOT_SPACED, True, True),
}


@pytest.mark.parametrize("case", SPACES)
def test_a_space_before_a_text(source, tmp_path, case):
    settings, stated, expected = SPACES[case]
    files = {"tokenizer_config.json": settings}
    plain = tokenization.load(BPE)
    if stated is None:
        files |= {name: (BPE / name).read_text("utf-8") for name in ("vocab.json", "merges.txt")}
    else:
        files["tokenizer.json"] = byte_bpe.with_prefix_space(plain.content, stated)
    vocabularies.write_folder(source, "roberta", plain.vocab_size, files)
    warnings, written = convert(source, tmp_path / "out")
    assert not warnings and written["add_prefix_space"] is expected
    texts = ["Hello there", " Hello there", "", " ", "  a"]
    ids = plain.encode_batch([f" {text}" if expected and text[:1].strip() else text for text in texts])
    for folder in (source, tmp_path / "out"):
        tokenizer = read(folder).tokenizer
        assert tokenizer.encode_batch(texts) == ids
        for text, (found, spans) in zip(texts, tokenizer.encode_with_offsets(texts), strict=True):
            assert "".join(text[begin:end] for begin, end in spans) == text.replace(" ", "")
            assert tokenizer.decode(found).strip() == text.strip()


@pytest.mark.parametrize("in_vocabulary", [True, False])
def test_added_tokens_are_kept(source, tmp_path, in_vocabulary):
    """Added tokens keep their flags, whether or not vocab.txt has them; added_tokens.json has no flags."""
    size = len(vocabularies.WORDPIECES)
    entries = [{"id": size, "content": "[E1]", **vocabularies.FLAGS}]
    content = vocabularies.wordpiece_json()
    content["added_tokens"] += entries
    files = {"tokenizer.json": content, "added_tokens.json": {"[E2]": size + 1}}
    if in_vocabulary:
        files["vocab.txt"] = vocabularies.VOCABULARY + "[E1]\n"
    vocabularies.write_folder(source, "bert", size + 2, files)
    warnings, _ = convert(source, tmp_path / "out")
    assert warnings == [f"warning: {source}: its added tokens [E1], [E2] are not recognized in all texts"]
    again = json.loads((tmp_path / "out" / "tokenizer.json").read_text())["added_tokens"]
    assert entries[0] in again and {one["content"]: one["id"] for one in again}["[E2]"] == size + 1
    tokenizer = read(tmp_path / "out").tokenizer
    assert tokenizer.tokens == [*vocabularies.WORDPIECES, "[E1]", "[E2]"]


def test_a_model_with_one_token_type_has_it_in_both_texts_of_a_pair(source, tmp_path, make_model):
    model = make_model("none", type_vocab_size=1)
    huggingface.FORMAT.write(model, source)
    content = json.loads((source / "tokenizer.json").read_text())
    rows = content["post_processor"]["pair"]
    assert {place["type_id"] for part in rows for place in part.values()} == {0}
    # BertTokenizer does not read these settings.
    assert (
        json.loads((source / "tokenizer_config.json").read_text())["tokenizer_class"]
        == "PreTrainedTokenizerFast"
    )
    assert (
        read(source).tokenizer.layout.row([7], [8]).tolist() == model.tokenizer.layout.row([7], [8]).tolist()
    )
