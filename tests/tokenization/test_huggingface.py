"""Hugging Face folders as vocabularies: records are tokenized in the same way as for the checkpoint."""

import json
from pathlib import Path

import pytest
import sentencepiece
import tokenizers
from support import vocabularies
from support.vocabularies import write_json

from bert_jax import tokenization
from bert_jax.convert import loading
from bert_jax.convert.formats import huggingface
from bert_jax.errors import UserError
from bert_jax.tokenization import byte_bpe, templates

TESTDATA = Path(__file__).resolve().parents[1] / "testdata"
TEXT = "The cat sat, and Ran to the capital."
NO_IDEOGRAPHS = vocabularies.NORMALIZER | {"handle_chinese_chars": False}


@pytest.fixture
def vocabulary(tmp_path):
    (tmp_path / "vocab.txt").write_text(vocabularies.VOCABULARY)
    return tokenization.load(tmp_path / "vocab.txt", lower_case=True)


def test_a_folder_of_version_5_has_the_ids_of_its_vocabulary(tmp_path, vocabulary):
    classes = {"tokenizer_class": "BertTokenizer", "do_lower_case": True}
    content = vocabularies.wordpiece_json()
    folder = write_json(tmp_path / "folder", tokenizer=content, tokenizer_config=classes)
    tokenizer = tokenization.load(folder)
    assert tokenizer.tokens == vocabulary.tokens and tokenizer.digest == vocabulary.digest
    assert tokenizer.encode_batch([TEXT]) == vocabulary.encode_batch([TEXT])
    assert tokenizer.settings() == vocabulary.settings()
    # The file does not contain all settings; other files of the folder may define how text is split.
    with pytest.raises(UserError, match=r"WordPiece.* the folder of the file"):
        tokenization.load(folder / "tokenizer.json")


@pytest.mark.parametrize("in_settings", [True, False])
@pytest.mark.parametrize("lower_case, strip_accents", [(False, None), (True, False), (False, True)])
def test_the_case_and_the_accents_are_those_of_the_folder(tmp_path, in_settings, lower_case, strip_accents):
    """Settings of the folder decide, because the vocabulary, with only lower-case tokens, does not."""
    if in_settings:
        stated = {"do_lower_case": lower_case, "strip_accents": strip_accents}
        folder = write_json(tmp_path / "folder", tokenizer_config=stated)
    else:
        stated = {"lowercase": lower_case, "strip_accents": strip_accents}
        content = vocabularies.wordpiece_json(normalizer=vocabularies.NORMALIZER | stated)
        folder = write_json(tmp_path / "folder", tokenizer=content)
    (folder / "vocab.txt").write_text(vocabularies.VOCABULARY)
    tokenizer = tokenization.load(folder)
    expected = lower_case if strip_accents is None else strip_accents
    assert (tokenizer.lower_case, tokenizer.strip_accents) == (lower_case, expected)
    # Given settings take precedence; --lower_case also affects accents.
    given = tokenization.load(folder, lower_case=not lower_case)
    assert given.lower_case is given.strip_accents is not lower_case
    assert tokenization.load(folder, strip_accents=not expected).strip_accents is not expected
    # A file is read without the settings in its folder.
    assert tokenization.load(folder / "vocab.txt").strip_accents


@pytest.mark.parametrize("name", ["albert", "distilbert", "electra", "modernbert", "roberta"])
def test_a_folder_is_read_as_that_of_a_model(name):
    folder = TESTDATA / name / "masked_lm"
    tokenizer = tokenization.load(folder)
    assert tokenizer.settings() == loading.load(str(folder)).tokenizer.settings()
    assert tokenizer.normalizer == ("albert" if name == "albert" else "bert")


def test_the_rows_are_those_of_the_family(tmp_path):
    content = tokenization.load(TESTDATA / "bpe").content
    rows = byte_bpe.template_processing(templates.BERT, {"cls": ("<s>", 0), "sep": ("</s>", 2)})
    content = content | {"post_processor": json.loads(rows.__getstate__())}
    folder = write_json(tmp_path / "folder", tokenizer=content)
    assert tokenization.load(folder).template == templates.BERT
    (folder / "config.json").write_text('{"model_type": "modernbert"}')
    assert tokenization.load(folder).template == templates.MODERNBERT
    assert tokenization.load(folder, template=templates.ROBERTA).template == templates.ROBERTA


@pytest.mark.parametrize(
    "stated",
    [
        {"tokenizer_config": {"padding_side": "left"}},
        {"tokenizer_config": {"truncation_side": "left"}},
        {"tokenizer_config": {"remove_space": False}},
        {"tokenizer_config": {"tokenizer_class": "BertJapaneseTokenizer"}},
        {"tokenizer": vocabularies.wordpiece_json(normalizer=NO_IDEOGRAPHS)},
        {"tokenizer": vocabularies.wordpiece_json(truncation={"direction": "Left"})},
        {"tokenizer": vocabularies.wordpiece_json(padding={"direction": "Left"})},
        {"tokenizer": {"model": {"type": "WordPiece", "max_input_chars_per_word": 200}}},
    ],
)
def test_settings_that_give_other_ids_or_positions(tmp_path, stated):
    folder = write_json(tmp_path / "folder", **stated)
    (folder / "vocab.txt").write_text(vocabularies.VOCABULARY)
    with pytest.raises(UserError, match=r"side|remove_space|Japanese|chinese_chars|max_input_chars_per_word"):
        tokenization.load(folder)


def scored(tokenizer):
    """The tokens of a SentencePiece model with the ids of fairseq, and their scores."""
    pieces = sentencepiece.SentencePieceProcessor(model_file=tokenizer.path)
    scores = {pieces.IdToPiece(i): pieces.GetScore(i) for i in range(3, pieces.GetPieceSize())}
    return [(token, scores.get(token, 0.0)) for token in tokenizer.tokens]


@pytest.mark.parametrize("name", ["AlbertTokenizer", "XLMRobertaTokenizer"])
def test_a_unigram_tokenizer_json_has_the_ids_of_its_model(tmp_path, name):
    """A tokenizer.json without a SentencePiece model, as transformers 5 saves it, gives the model's ids."""
    if name == "AlbertTokenizer":
        model = tokenization.load(TESTDATA / "albert" / "masked_lm")
        content = json.loads(huggingface.albert_rust(model).to_str())
    else:
        model = tokenization.load(vocabularies.fairseq_model(tmp_path))
        special = [{"id": i, "content": model.tokens[i], "special": True} for i in model.special_ids.values()]
        unigram = {"type": "Unigram", "unk_id": 3, "vocab": scored(model)}
        content = {"model": unigram, "added_tokens": special}
    folder = write_json(tmp_path / "folder", tokenizer=content, tokenizer_config={"tokenizer_class": name})
    tokenizer = tokenization.load(folder)
    assert tokenizer.tokens == model.tokens and tokenizer.special_ids == model.special_ids
    assert (tokenizer.normalizer, tokenizer.lower_case) == (model.normalizer, model.lower_case)
    assert tokenizer.template == model.template
    texts = [TEXT, "Some other w\u00f6rds, and 7 numb-ers!", "", " a  b "]
    assert tokenizer.encode_batch(texts) == model.encode_batch(texts)


def test_a_unigram_file_of_version_5_has_the_ids_of_the_library(tmp_path):
    """Without the SentencePiece model's character table, words are split at any whitespace."""
    vocabulary = scored(tokenization.load(vocabularies.fairseq_model(tmp_path)))
    library = tokenizers.Tokenizer(tokenizers.models.Unigram(vocabulary, unk_id=3))
    library.add_special_tokens(["<s>", "<pad>", "</s>", "<unk>", "<mask>"])
    library.pre_tokenizer = tokenizers.pre_tokenizers.Sequence(
        [tokenizers.pre_tokenizers.WhitespaceSplit(), tokenizers.pre_tokenizers.Metaspace()]
    )
    classes = {"tokenizer_class": "XLMRobertaTokenizer"}
    folder = write_json(tmp_path / "folder", tokenizer=json.loads(library.to_str()), tokenizer_config=classes)
    word = vocabularies.WORDS[0]
    texts = [f"{word}{space}{word} é{space}" for space in " \n\t\r\xa0\u2028\u3000\u200b\x1f"]
    expected = [library.encode(text, add_special_tokens=False).ids for text in texts]
    assert tokenization.load(folder).encode_batch(texts) == expected
