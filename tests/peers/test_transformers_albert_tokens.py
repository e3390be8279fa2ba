"""Token ids of ALBERT here and of transformers' tokenizer in Rust, on random Unicode text.

tests/tokenization/test_albert_text.py compares with google-research/albert.
"""

import random
import shutil
import unicodedata

import pytest
from support import albert_reference

from bert_jax import cli, tokenization
from bert_jax.convert.formats import huggingface_export

transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.peer

COUNT = 100_000


def common(text):
    """The text without marks and rare whitespace, which the tokenizer in Rust treats differently."""
    text = unicodedata.normalize("NFKD", text).replace("``", '"').replace("''", '"')
    text = "".join(c for c in text if unicodedata.category(c)[0] != "M" and c not in "\u1cf2\u1cf3")
    return "".join(" " if c.isspace() else c for c in text)


def test_with_our_tokenizer_json_the_ids_agree(shared_data, tmp_path):
    """But for texts with two best divisions into pieces (2 in 10,000)."""
    rows = (shared_data / "glue" / "MRPC" / "train.tsv").read_text("utf-8").splitlines()[1:]
    numbers = ["in 1999, or 1,000, 42, 7, and 3,5 or 12, of 9, words"] * 3000
    (tmp_path / "text.txt").write_text("\n".join([*(row.split("\t")[3] for row in rows), *numbers]), "utf-8")
    flags = ["--kind=sentencepiece", "--normalizer=albert", "--size=2000"]
    assert (
        cli.main(["vocab", f"--input={tmp_path}/text.txt", f"--output={tmp_path}/vocab.model", *flags]) == 0
    )
    folder = tmp_path / "there"
    folder.mkdir()
    shutil.copy(tmp_path / "vocab.model", folder / "spiece.model")
    tokenizer = tokenization.load(folder / "spiece.model", normalizer="albert")
    huggingface_export.albert_rust(tokenizer).save(str(folder / "tokenizer.json"))
    theirs = transformers.AlbertTokenizerFast.from_pretrained(folder)
    rng = random.Random(5)
    texts = [common(albert_reference.random_text(rng)) for _ in range(COUNT)]
    found = theirs(texts, add_special_tokens=False)["input_ids"]
    different = [a != b for a, b in zip(found, tokenizer.encode_batch(texts), strict=True)]
    assert sum(different) < 1e-3 * COUNT
