"""A small tokenizer of each kind."""

import json
import pathlib
import random

import tokenizers
from tokenizers import models, pre_tokenizers, trainers

from bert_jax import tokenization
from bert_jax.tokenization import byte_bpe, templates

from . import vocabularies

NAMES = (
    *("wordpiece", "wordpiece, cased", "sentencepiece", "albert", "xlm-r", "deberta", "deberta, nfc"),
    *("bpe", "bpe, nfc"),
)


def composed_deberta(folder):
    """Returns the path of the model that is read from a tokenizer.json as transformers 5 saves it."""
    model = pathlib.Path(vocabularies.deberta_model(folder))
    (folder / "version_5").mkdir()
    (folder / "version_5" / "tokenizer.json").write_text(vocabularies.version_5(model.read_bytes()))
    (folder / "version_5" / "config.json").write_text('{"model_type": "deberta-v2"}')
    return tokenization.load(folder / "version_5").path


def write(folder):
    """Writes the vocabularies, and returns for each name a path and the options of `tokenization.load`."""
    (folder / "vocab.txt").write_text(vocabularies.VOCABULARY + "".join(f"{c}\n##{c}\n" for c in "exyz09"))
    words = [*vocabularies.WORDS, "9,", "3"]
    unigram = vocabularies.albert_model(folder, words=words, size=80)
    rust = tokenizers.Tokenizer(models.BPE())
    rust.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = sorted(byte_bpe.ALPHABET)
    special = byte_bpe.ROBERTA_TOKENS
    options = dict(special_tokens=[*special.values()], initial_alphabet=alphabet, show_progress=False)
    rng = random.Random(0)
    lines = [" ".join(rng.choices(words, k=9)) for _ in range(300)]
    rust.train_from_iterator(lines, trainers.BpeTrainer(vocab_size=300, **options))
    model = json.loads(rust.to_str())["model"]
    merges = [" ".join(merge) for merge in model["merges"]]
    content = byte_bpe.tokenizer_json(model["vocab"], merges, special, templates.ROBERTA)
    (folder / "plain").mkdir(), (folder / "nfc").mkdir()
    (folder / "plain" / "tokenizer.json").write_bytes(byte_bpe.serialized(content))
    content = json.loads(byte_bpe.serialized(content)) | {"normalizer": {"type": "NFC"}}
    (folder / "nfc" / "tokenizer.json").write_text(json.dumps(content))
    return {
        "wordpiece": (str(folder / "vocab.txt"), dict(lower_case=True)),
        "wordpiece, cased": (str(folder / "vocab.txt"), dict(lower_case=False)),
        "sentencepiece": (unigram, dict(lower_case=True)),
        "albert": (unigram, dict(lower_case=True, normalizer="albert")),
        "xlm-r": (str(vocabularies.fairseq_model(folder)), {}),
        "deberta": (vocabularies.deberta_model(folder), {}),
        "deberta, nfc": (composed_deberta(folder), {}),
        "bpe": (str(folder / "plain" / "tokenizer.json"), {}),
        "bpe, nfc": (str(folder / "nfc" / "tokenizer.json"), {}),
    }
