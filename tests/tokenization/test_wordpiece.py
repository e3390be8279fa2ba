"""WordPiece: equality with the reference's algorithm, and the mistakes that vocabulary files have."""

import json
import unicodedata
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bert_jax import tokenization
from bert_jax.errors import UserError
from data_pipelines.stages import google_text

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
WORDS = [
    *"want ##want ##ed wa un runn ##ing , low lowest the ##s ο ##δο ##σ ##ς 中 文 é e ##e".split(),
    *"i ##i a ##a".split(),
    *"! - [ ] mask ##? ? 🙂 ##🙂 \ue000 ##\ue000 \U0001fae8 ##\U0001fae8".split(" "),
]
SINGLE = [
    chr(c) for c in range(0x21, 0x250) if unicodedata.category(chr(c))[0] != "C" and not chr(c).isspace()
]

CHINESE = (
    *((0x4E00, 0x9FFF), (0x3400, 0x4DBF), (0x20000, 0x2A6DF), (0x2A700, 0x2B73F), (0x2B740, 0x2B81F)),
    *((0x2B820, 0x2CEAF), (0xF900, 0xFAFF), (0x2F800, 0x2FA1F)),
)

# Alphabets in which the two could differ, and everything else.
UNICODE = st.text(
    alphabet=st.one_of(
        st.characters(exclude_categories=["Cs"]),
        st.characters(categories=["Mn", "Mc", "Me", "Cc", "Cf", "Co", "Cn"]),
        st.characters(categories=["Zs", "Zl", "Zp", "Pc", "Pd", "Ps", "Pe", "Pi", "Pf", "Po", "Sk", "Sm"]),
        st.characters(min_codepoint=0x3000, max_codepoint=0xFAFF, exclude_categories=["Cs"]),
        st.characters(min_codepoint=0x20000, max_codepoint=0x2FA1F),
        st.characters(min_codepoint=0x1F000, max_codepoint=0x1FAFF),
        st.sampled_from("ΑΒΣσςİıIiẞßK\u0301\u0327\u200b\u200d\ufeff\u00ad\x1c\x85\u2028\t\r\n .-'aAéÉ[]"),
        st.sampled_from("abcdefghijklmnopqrstuvwxyz"),
    ),
    max_size=40,
)
# U+166D and U+111C9: words with them are [UNK], as the docstring says; the vocabularies here hold neither.
SENTENCES = st.lists(
    st.one_of(UNICODE, st.sampled_from(["wanted", "running", "[MASK]", "ΟΔΟΣ", "x" * 101, "x" * 201])),
    max_size=8,
).map(" ".join)


def write(directory, tokens, name="vocab.txt"):
    path = directory / name
    path.write_text("".join(token + "\n" for token in tokens), encoding="utf-8", newline="")
    return str(path)


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory):
    tokens = list(dict.fromkeys(SPECIAL + WORDS + SINGLE + ["##" + c for c in SINGLE]))
    return write(tmp_path_factory.mktemp("vocabulary"), tokens)


@pytest.fixture(scope="module", params=[(True, True), (False, False), (True, False), (False, True)])
def tokenizer(request, vocabulary):
    lower_case, strip_accents = request.param
    return tokenization.load(vocabulary, lower_case=lower_case, strip_accents=strip_accents)


def reference_tokens(text, vocabulary, lower_case, strip_accents):
    """google-research/bert's full tokenizer, from its algorithm: slow, and beyond doubt."""
    cleaned = ""
    for char in text:
        category = unicodedata.category(char)
        if char in "\t\n\r" or category == "Zs":
            cleaned += " "
        elif any(first <= ord(char) <= last for first, last in CHINESE):
            cleaned += f" {char} "
        elif char not in "\0\ufffd" and category not in ("Cc", "Cf"):
            cleaned += char
    tokens = []
    for word in cleaned.split():
        word = word.lower() if lower_case else word
        if strip_accents:
            word = "".join(c for c in unicodedata.normalize("NFD", word) if unicodedata.category(c) != "Mn")
        for part in "".join(f" {c} " if is_punctuation(c) else c for c in word).split():
            tokens += subwords(part, vocabulary)
    return tokens


def is_punctuation(char):
    """Also ASCII characters that Unicode calls symbols."""
    if char.isascii():
        return char.isprintable() and not char.isalnum() and char != " "
    return unicodedata.category(char).startswith("P")


def subwords(word, vocabulary):
    pieces, start = [], 0
    while start < len(word) <= 200:
        prefix = "##" if start else ""
        ends = (end for end in range(len(word), start, -1) if prefix + word[start:end] in vocabulary)
        end = next(ends, None)
        if end is None:
            return ["[UNK]"]
        pieces.append(prefix + word[start:end])
        start = end
    return pieces or ["[UNK]"]


def expected(tokenizer, text):
    return reference_tokens(text, set(tokenizer.tokens), tokenizer.lower_case, tokenizer.strip_accents)


def google(tokenizer):
    """The tokenizer with the rules of google-research/bert."""
    options = tokenizer.lower_case, tokenizer.strip_accents
    return google_text.GoogleWordPieceTokenizer(tokenizer.path, *options)


def tokens_of(tokenizer, text):
    return [tokenizer.tokens[i] for i in tokenizer.encode_batch([text])[0]]


@pytest.mark.long
@settings(max_examples=100, deadline=None)
@given(text=SENTENCES)
def test_equals_the_oracle_on_any_unicode(tokenizer, text):
    assert tokens_of(google(tokenizer), text) == expected(tokenizer, text)


def test_case_and_accents_are_kept_or_removed(tokenizer):
    text = "WAnted É é,running low Low e\u0301"
    assert tokens_of(tokenizer, text) == expected(tokenizer, text)


def test_code_points_at_which_the_two_rules_differ(tokenizer):
    text = "wa\ue000nt \U0001fae8" + " ΟΔΟΣ" * tokenizer.lower_case
    assert tokens_of(tokenizer, text) != tokens_of(google(tokenizer), text) == expected(tokenizer, text)


def test_golden_values_of_the_reference(tmp_path):
    # google-research/bert's tokenization_test.py.
    path = write(tmp_path, [*SPECIAL, "want", "##want", "##ed", "wa", "un", "runn", "##ing", ","])
    tokenizer = google(tokenization.load(path, lower_case=True))
    tokens = ["un", "##want", "##ed", ",", "runn", "##ing"]
    assert tokens_of(tokenizer, "UNwant\u00e9d,running") == tokens
    assert tokens_of(tokenizer, "unwanted running") == ["un", "##want", "##ed", "runn", "##ing"]
    assert tokens_of(tokenizer, "unwantedX running") == ["[UNK]", "runn", "##ing"]
    assert tokenizer.encode_batch(["", "  \n", "\u0000\u200b"]) == [[], [], []]
    assert tokenizer.decode(tokenizer.encode_batch(["unwanted, running"])[0]) == "unwanted , running"


@pytest.mark.parametrize("longest", [100, 200])
def test_long_words_are_unknown(tokenizer, longest):
    if longest == 200:
        tokenizer = google(tokenizer)
    assert tokens_of(tokenizer, "a" * longest) == ["a"] + ["##a"] * (longest - 1)
    assert tokens_of(tokenizer, "a" * (longest + 1) + " the") == ["[UNK]", "the"]


def test_special_tokens_only_where_allowed(tokenizer):
    assert tokens_of(tokenizer, "[UNK]")[0] == "["
    ids = tokenizer.encode_batch(["the [MASK], the[MASK][SEP]"], allow_special=["[MASK]"])[0]
    tokens = [tokenizer.tokens[i] for i in ids]
    assert tokens[:5] == ["the", "[MASK]", ",", "the", "[MASK]"]
    assert tokens[5] == "[" and "[SEP]" not in tokens
    assert tokenizer.encode_batch(["the", "", "[MASK]"], allow_special=["[MASK]", "[SEP]"])[1:] == [
        [],
        [tokenizer.mask_id],
    ]


@pytest.mark.parametrize(
    "tokens, lower_case",
    [
        (["the", "##s", "a"], True),
        (["The", "the"], False),
        (["中", "##文"], True),
        ([f"w{i}" for i in range(999)] + ["Stray"], True),
    ],
)
def test_lower_case_is_detected(tmp_path, tokens, lower_case):
    tokenizer = tokenization.load(write(tmp_path, SPECIAL + tokens))
    assert tokenizer.lower_case == tokenizer.strip_accents == lower_case


@pytest.mark.parametrize(
    "data", [b"[PAD]\n\nthe\n", b"the\nthe\n", "th\u00e9\n".encode("latin-1"), b" ", b"the\n"]
)
def test_files_that_are_not_vocabularies(tmp_path, data):
    (tmp_path / "vocab.txt").write_bytes(data)
    with pytest.raises(UserError, match=r"vocab\.txt"):
        tokenization.load(tmp_path)


def test_marks_of_a_script_without_capitals_are_kept(tmp_path):
    for words, strips in ((["में", "है", "किताब", "हम"], False), (["cafe", "uber"], True), (["café"], False)):
        tokenizer = tokenization.load(write(tmp_path, SPECIAL + words))
        assert (tokenizer.lower_case, tokenizer.strip_accents) == (True, strips)
        assert tokenization.load(tokenizer.path, lower_case=True).strip_accents


@pytest.mark.parametrize("kind", ["uncased", "cased"])
def test_ids_of_transformers(kind):
    """tests/testdata/make_goldens.py wrote what BertTokenizer gave difficult texts."""
    folder = Path(__file__).resolve().parents[1] / "testdata" / "goldens"
    golden = json.loads((folder / "tokens.json").read_text())
    tokenizer = tokenization.load(str(folder / "vocab.txt"), lower_case=kind == "uncased")
    found = dict(zip(golden["texts"], tokenizer.encode_batch(golden["texts"]), strict=True))
    different = [text for text, ids in zip(golden["texts"], golden[kind], strict=True) if found[text] != ids]
    # Special tokens in a text are words like others.
    assert different == ["[MASK] of [CLS] and [mask]"]
    known = list(filter(None, found.values()))
    assert len(known) > 25 and any(tokenizer.unk_id not in ids for ids in known)
