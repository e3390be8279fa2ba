"""A small tokenizer of each kind."""

import json
import pathlib
import random

import sentencepiece
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
    rng = random.Random(0)
    lines = [" ".join(rng.choices(vocabularies.WORDS, k=9)) + " 9, 3" for _ in range(300)]
    with (folder / "unigram.model").open("wb") as file:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(lines), model_writer=file, vocab_size=80, hard_vocab_limit=False,
            minloglevel=2, pad_id=0, unk_id=1, bos_id=-1, eos_id=-1,
            control_symbols=["[CLS]", "[SEP]", "[MASK]"],
        )  # fmt: skip
    rust = tokenizers.Tokenizer(models.BPE())
    rust.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = sorted(byte_bpe.ALPHABET)
    special = byte_bpe.ROBERTA_TOKENS
    options = dict(special_tokens=[*special.values()], initial_alphabet=alphabet, show_progress=False)
    rust.train_from_iterator(lines, trainers.BpeTrainer(vocab_size=300, **options))
    model = json.loads(rust.to_str())["model"]
    merges = [" ".join(merge) for merge in model["merges"]]
    content = byte_bpe.tokenizer_json(model["vocab"], merges, special, templates.ROBERTA)
    (folder / "plain").mkdir(), (folder / "nfc").mkdir()
    (folder / "plain" / "tokenizer.json").write_bytes(byte_bpe.serialized(content))
    content = json.loads(byte_bpe.serialized(content)) | {"normalizer": {"type": "NFC"}}
    (folder / "nfc" / "tokenizer.json").write_text(json.dumps(content))
    unigram = str(folder / "unigram.model")
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
