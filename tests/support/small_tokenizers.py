"""A small tokenizer of each kind."""

import json
import pathlib

from bert_jax import tokenization

from . import vocabularies

TESTDATA = pathlib.Path(__file__).resolve().parents[1] / "testdata"
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
    unigram = vocabularies.albert_model(folder, words=[*vocabularies.WORDS, "9,", "3"], size=80)
    content = tokenization.load(TESTDATA / "bpe").content
    for name, normalizer in (("plain", None), ("nfc", {"type": "NFC"})):
        (folder / name).mkdir()
        text = json.dumps({**content, "normalizer": normalizer})
        (folder / name / "tokenizer.json").write_text(text)
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
