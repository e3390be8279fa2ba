"""Vocabularies that tests learn, and folders of small models with the files of any tokenizer."""

import json

import numpy as np
import sentencepiece
import tokenizers

from bert_jax.convert.formats import huggingface
from bert_jax.models.config import EncoderConfig

from .conversions import random_model

WORDS = "the cat sat on a small mat and one dog ran with it to capital town of france in rain".split()
# In the order of RoBERTa's ids, as Korean and Japanese RoBERTas have them.
WORDPIECES = ["[CLS]", "[PAD]", "[SEP]", "[UNK]", "[MASK]", *WORDS, "##s", ",", "!"]
VOCABULARY = "".join(f"{token}\n" for token in WORDPIECES)
# The flags of a special token, and the text of an uncased BERT, in tokenizer.json.
FLAGS = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
NORMALIZER = {
    "type": "BertNormalizer",
    "clean_text": True,
    "handle_chinese_chars": True,
    "strip_accents": None,
    "lowercase": True,
}


def wordpiece_json(**parts):
    """Returns the content of a tokenizer.json as BertTokenizer writes it; `parts` replace its own."""
    model = {"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##"}
    ids = {token: i for i, token in enumerate(WORDPIECES)}
    return {
        "version": "1.0",
        "added_tokens": [{"id": i, "content": token, **FLAGS} for token, i in ids.items() if token[0] == "["],
        "normalizer": NORMALIZER,
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "post_processor": None,
        "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": True},
        "model": model | {"max_input_chars_per_word": 100, "vocab": ids},
    } | parts


def sentence_piece(path, words=WORDS, size=60, **options):
    """Writes a SentencePiece model that is learned from random words, and returns its path."""
    rng = np.random.default_rng(0)
    with path.open("wb") as file:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=(" ".join(rng.choice(words, 9)) for _ in range(300)),
            **dict(model_writer=file, vocab_size=size, hard_vocab_limit=False, minloglevel=2),
            **options,
        )
    return str(path)


def fairseq_model(folder, **options):
    """Writes a SentencePiece model with the ids of XLM-R into a folder, and returns its path."""
    ids = dict(unk_id=0, bos_id=1, eos_id=2, pad_id=-1)
    return sentence_piece(folder / "sentencepiece.bpe.model", **ids, **options)


def albert_model(folder, **options):
    """Writes a SentencePiece model as google-research/albert trained its own; returns its path."""
    ids = dict(pad_id=0, unk_id=1, bos_id=-1, eos_id=-1, control_symbols=["[CLS]", "[SEP]", "[MASK]"])
    return sentence_piece(folder / "spiece.model", **ids, **options)


def deberta_model(folder, size=60, extra=()):
    """Writes a SentencePiece model as DeBERTa's into a folder, and returns its path."""
    pieces = dict(pad_piece="[PAD]", bos_piece="[CLS]", eos_piece="[SEP]", unk_piece="[UNK]")
    ids = dict(pad_id=0, bos_id=1, eos_id=2, unk_id=3)
    return sentence_piece(folder / "spm.model", [*WORDS, *extra], size, **pieces, **ids)


def version_5(model):
    """Returns the tokenizer.json that DebertaV2Tokenizer of transformers 5 saves for a model."""
    pieces = sentencepiece.SentencePieceProcessor(model_proto=model)
    scores = [(pieces.IdToPiece(i), pieces.GetScore(i)) for i in range(len(pieces))]
    rust = tokenizers.Tokenizer(tokenizers.models.Unigram(scores, unk_id=3))
    names = tokenizers.normalizers
    whitespace = names.Replace(tokenizers.Regex(r"\s{2,}|[\n\r\t]"), " ")
    rust.normalizer = names.Sequence([whitespace, names.NFC(), names.Strip(left=False, right=True)])
    rust.pre_tokenizer = tokenizers.pre_tokenizers.Sequence(
        [tokenizers.pre_tokenizers.Metaspace(prepend_scheme="always")]
    )
    rust.add_special_tokens(["[PAD]", "[CLS]", "[SEP]", "[UNK]", "[MASK]"])
    return rust.to_str()


def write_json(folder, **files):
    """Writes {name without suffix: JSON or its text} into a new folder, and returns it."""
    folder.mkdir(exist_ok=True)
    for name, content in files.items():
        (folder / f"{name}.json").write_text(content if isinstance(content, str) else json.dumps(content))
    return folder


def write_folder(folder, family, vocab_size, files):
    """Writes a small encoder of a family ("bert" or "roberta") and the files {name: text or JSON object}."""
    sizes = dict(hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8)
    types = {"roberta": {"type_vocab_size": 1, "position_offset": 2}}.get(family, {})
    fields = sizes | types | {"max_position_embeddings": 20, "model_type": family}
    config = EncoderConfig(vocab_size=vocab_size, **fields)
    huggingface.FORMAT.write(random_model(config, "none"), folder)
    for name, content in files.items():
        text = content if isinstance(content, str) else json.dumps(content)
        (folder / name).write_text(text, "utf-8")
