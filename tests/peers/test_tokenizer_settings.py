"""Folders that transformers saves with other settings of their tokenizers: the same ids, or an error."""

import json
from pathlib import Path

import pytest
from support import vocabularies
from support.conversions import random_model

from bert_jax import tokenization
from bert_jax.convert import conversion, loading
from bert_jax.convert.formats import huggingface
from bert_jax.errors import UserError
from bert_jax.library import LoadedModel
from bert_jax.models.config import EncoderConfig
from bert_jax.tokenization import templates

transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.peer

BPE = Path(__file__).resolve().parents[1] / "testdata" / "bpe"
WORDPIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *vocabularies.WORDPIECES[5:]]
TEXTS = [
    "the cat sat on a mat",
    " One  dog ran, with it!",
    "caf\u00e9 in France\u5b57",
    "rain E1 in E1town",
    "",
]
FAMILIES = {
    "bert": "BertTokenizer",
    "distilbert": "DistilBertTokenizer",
    "electra": "ElectraTokenizer",
    "roberta": "RobertaTokenizer",
    "modernbert": "PreTrainedTokenizerFast",
}


@pytest.fixture(params=FAMILIES)
def save(request, tmp_path):
    """save(change): a small model, whose tokenizer transformers saved after `change(tokenizer)`."""
    family = request.param
    folder = tmp_path / "source"
    folder.mkdir()

    def make(change=lambda tokenizer: None, **settings):
        files = {"tokenizer_config.json": {"tokenizer_class": FAMILIES[family]}}
        if family in ("roberta", "modernbert"):
            files |= {name: (BPE / name).read_text("utf-8") for name in ("vocab.json", "merges.txt")}
            size = len(json.loads(files["vocab.json"]))
        else:
            files |= {"vocab.txt": "".join(f"{token}\n" for token in WORDPIECES)}
            size = len(WORDPIECES)
        model_family = "roberta" if family in ("roberta", "modernbert") else "bert"
        vocabularies.write_folder(folder, model_family, size + 4, files)
        name = "RobertaTokenizer" if family == "modernbert" else FAMILIES[family]
        tokenizer = getattr(transformers, name).from_pretrained(folder, **settings)
        change(tokenizer)
        for file in (*files, "modules.json", "sentence_bert_config.json"):
            (folder / file).unlink()
        tokenizer.save_pretrained(folder)
        return folder

    return make


def check(folder, output, texts=TEXTS):
    """Texts, pairs and texts with a mask have the ids of transformers, also after a conversion."""
    theirs = transformers.AutoTokenizer.from_pretrained(folder)
    conversion.convert(str(folder), str(output), "huggingface", log=lambda line: None)
    written = transformers.AutoTokenizer.from_pretrained(output)
    models = [loading.load(str(each), log=lambda line: None) for each in (folder, output)]
    ours = [model.tokenizer for model in models]
    masked = [f"the{space}{theirs.mask_token}{space}cat" for space in ("", " ", "  ")]
    for given, special in ((texts, ()), (masked, (theirs.mask_token,))):
        expected = theirs(given, add_special_tokens=False)["input_ids"]
        for tokenizer in ours:
            assert tokenizer.encode_batch(given, allow_special=special) == expected
        assert written(given)["input_ids"] == theirs(given)["input_ids"]
    row = ours[0].layout.row(*ours[0].encode_batch(texts[:2])).tolist()
    assert row == theirs(*texts[:2])["input_ids"] == written(*texts[:2])["input_ids"]
    assert written.model_max_length == min(theirs.model_max_length, models[0].config.max_seq_length)
    return theirs, written


@pytest.mark.parametrize("lstrip", [None, False, True])
@pytest.mark.parametrize("rstrip", [False, True])
def test_whitespace_around_a_mask(save, tmp_path, lstrip, rstrip):
    def change(tokenizer):
        if lstrip is not None:
            flags = {"lstrip": lstrip, "rstrip": rstrip, "special": True, "normalized": False}
            tokenizer.add_special_tokens(
                {"mask_token": transformers.AddedToken(tokenizer.mask_token, **flags)}
            )

    check(save(change), tmp_path / "out")


def test_the_left_side_is_an_error(save):
    folder = save(truncation_side="left")
    with pytest.raises(UserError, match=f"{folder}.*truncation_side"):
        loading.load(str(folder))


def test_truncation_that_is_saved(save, tmp_path):
    def change(tokenizer):
        tokenizer(TEXTS, truncation=True, padding="max_length", max_length=8)

    check(save(change), tmp_path / "out")


@pytest.mark.parametrize("length", [8, 16, 512])
def test_the_longest_text(save, tmp_path, length):
    _, written = check(save(model_max_length=length), tmp_path / "out")
    if length == 8:
        assert len(written(" ".join(TEXTS), truncation=True)["input_ids"]) == 8


def test_added_tokens(save, tmp_path):
    def change(tokenizer):
        tokenizer.add_tokens(["E1"])
        tokenizer.add_special_tokens({"additional_special_tokens": ["[E2]"]})

    folder = save(change)
    lines = []
    loading.load(str(folder), log=lines.append)
    theirs = transformers.AutoTokenizer.from_pretrained(folder)
    conversion.convert(str(folder), str(tmp_path / "out"), "huggingface", log=lambda line: None)
    written = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    texts = [*TEXTS, "a [E2] b"]
    assert written(texts)["input_ids"] == theirs(texts)["input_ids"]
    # Here special tokens in a text are text.
    assert any("[E2]" in line for line in lines)


@pytest.mark.parametrize("value", [False, True])
@pytest.mark.parametrize(
    "name", ["do_lower_case", "strip_accents", "tokenize_chinese_chars", "add_prefix_space"]
)
def test_settings_of_text(save, tmp_path, name, value):
    folder = save(**{name: value})
    try:
        check(folder, tmp_path / "out")
    except UserError as error:
        assert str(folder) in str(error)


@pytest.mark.parametrize("kind", ["wordpiece", "bpe"])
@pytest.mark.parametrize("types", [1, 2])
def test_the_token_types_of_a_pair(tmp_path, kind, types):
    torch = pytest.importorskip("torch")
    (tmp_path / "vocab.txt").write_text("".join(f"{token}\n" for token in WORDPIECES))
    template = {"template": templates.BERT} if kind == "bpe" else {}
    tokenizer = tokenization.load(BPE if kind == "bpe" else tmp_path / "vocab.txt", **template)
    config = EncoderConfig(
        vocab_size=tokenizer.vocab_size, hidden_size=8, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=8, max_position_embeddings=20, type_vocab_size=types,
    )  # fmt: skip
    model = random_model(config, "none").replace(tokenizer=tokenizer)
    (tmp_path / "out").mkdir()
    huggingface.FORMAT.write(model, tmp_path / "out")
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    encoded = theirs("the cat", "a dog", return_tensors="pt")
    assert encoded["token_type_ids"].any() == (types == 2) and encoded["input_ids"].shape[1] > 6
    with torch.no_grad():
        found = transformers.AutoModel.from_pretrained(tmp_path / "out").eval()(**encoded).last_hidden_state
    ours = LoadedModel(loading.load(str(tmp_path / "out")), dtype="float32").encode([("the cat", "a dog")])
    assert abs(ours.states - found.numpy()).max() < 1e-5
