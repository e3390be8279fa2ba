"""Exported folders in transformers and sentence-transformers, where they are installed."""

import numpy as np
import pytest

from bert_jax import tokenization
from bert_jax.convert import HEADS
from bert_jax.convert.families import bert
from bert_jax.convert.formats import huggingface
from bert_jax.convert.sentences import SentenceVectors
from bert_jax.inference.embedding import Embedder

pytestmark = pytest.mark.peer
pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")


def load(head, folder):
    """The model by its Auto class, and nothing that it missed or did not know."""
    cls = getattr(transformers, HEADS[head].auto_class)
    model, info = cls.from_pretrained(folder, output_loading_info=True)
    assert not any(info[name] for name in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    return model.eval()


@pytest.mark.parametrize("head", bert.FAMILY.heads)
def test_auto_classes_load_every_head(make_model, tmp_path, head):
    model = make_model(head, pooler=head == "none")  # as transformers' own classes have it
    huggingface.FORMAT.write(model, tmp_path)
    theirs = load(head, tmp_path)
    ours = sum(array.size for array in model.params.values())
    assert sum(p.numel() for p in theirs.parameters()) == ours
    if model.labels:
        assert tuple(theirs.config.id2label[i] for i in range(len(model.labels))) == model.labels


@pytest.mark.parametrize("vocabulary", ["bert-base-uncased-vocab.txt", "bert-base-cased-vocab.txt"])
def test_exported_tokenizers_give_the_same_ids(make_model, tmp_path, shared_data, vocabulary):
    tokenizer = tokenization.load(shared_data / "vocab" / vocabulary)
    model = make_model(vocab_size=tokenizer.vocab_size).replace(tokenizer=tokenizer)
    huggingface.FORMAT.write(model, tmp_path)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    texts = ["Naïve unaffable Ärger, 东京 isn't far!", "The Quick brown\tfox\u00a0jumps.", "x" * 90]
    for text, ids in zip(texts, tokenizer.encode_batch(texts), strict=True):
        assert theirs(text)["input_ids"] == [tokenizer.cls_id, *ids, tokenizer.sep_id]
    pair = theirs("one", "two")
    assert pair["token_type_ids"] == [0, 0, 0, 1, 1]


@pytest.mark.parametrize("pooling", ["mean", "cls", "max", "last"])
def test_sentence_transformers_gives_the_same_vectors(make_model, tmp_path, pooling):
    sentence_transformers = pytest.importorskip("sentence_transformers")
    sentence = SentenceVectors(pooling, pooling != "max", 8, {"query": "paris is "})
    model = make_model("none").replace(sentence=sentence)
    huggingface.FORMAT.write(model, tmp_path)
    assert huggingface.FORMAT.read(tmp_path).sentence == sentence
    theirs = sentence_transformers.SentenceTransformer(str(tmp_path), device="cpu")
    texts = ["the cat sat", "a small cat sat on the capital of france and paris", "un"]
    for prompt, prefix in (("", ""), ("query", "paris is ")):
        expected = theirs.encode(texts, prompt_name=prompt or None)
        np.testing.assert_allclose(Embedder(model).embed(texts, prefix), expected, atol=2e-5)
