"""Makes tests/testdata/bpe: a small byte-level BPE vocabulary, and what transformers makes of texts with it.

    python tests/testdata/make_bpe.py

Needs transformers (5.23 was used). vocab.json and merges.txt are as RoBERTa's: four special tokens first, and
the mask last. tokens.json has texts with their ids and offsets, and rows.
"""

import json
import pathlib

import tokenizers
import transformers
from tokenizers import models, pre_tokenizers, trainers

FOLDER = pathlib.Path(__file__).parent / "bpe"
TRAINED_ON = [
    "The capital of France is Paris, and the capital of the world is where the reader is.",
    "A small cat sat on the mat; it didn't want to be unkind, and they'd said it wasn't unable to.",
    "In 1895 and in 1943 there were 12,345 people there. The other people were in another café.",
] * 3
TEXTS = [
    "Hello world",
    " Hello world",
    "Hello world!",
    "",
    " ",
    "   \n\t the  end \r\n",
    "they'd've didn't I'LL 'tis",
    "(1895–1943), 12,345.67%",
    "naïve café cafe\u0301 Москва 東京 が",
    "😀👩\u200d👩\u200d👧 \U0010ffff\x00\x7f",
    "a\u00a0b\u2003c\u3000d\u2028e\u0085f",
    "<s> the</s> <pad> <unk> the <mask> of Ġthe",
    "²½ ١٢ ⅷ x_y --- ...!?",
    "\ufeffthe \ufffd",
]
MASKED = ["The capital of <mask> is <mask>.", "<mask> <mask>\n<mask>", "the<mask>cat"]


def main():
    FOLDER.mkdir(exist_ok=True)
    rust = tokenizers.Tokenizer(models.BPE())
    rust.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(vocab_size=400, initial_alphabet=alphabet, show_progress=False)
    rust.train_from_iterator(TRAINED_ON, trainer)
    model = json.loads(rust.to_str())["model"]
    tokens = ["<s>", "<pad>", "</s>", "<unk>", *sorted(model["vocab"], key=model["vocab"].get), "<mask>"]
    vocab = {token: number for number, token in enumerate(tokens)}
    (FOLDER / "vocab.json").write_text(json.dumps(vocab, ensure_ascii=False) + "\n", "utf-8")
    merges = "".join(" ".join(merge) + "\n" for merge in model["merges"])
    (FOLDER / "merges.txt").write_text("#version: 0.2\n" + merges, "utf-8")

    mask = transformers.AddedToken("<mask>", lstrip=True, normalized=False)
    files = vocab, [tuple(merge) for merge in model["merges"]]
    plain = transformers.RobertaTokenizer(*files, split_special_tokens=True)
    special = transformers.RobertaTokenizer(*files, mask_token=mask)
    words = transformers.RobertaTokenizer(*files, add_prefix_space=True)
    found = plain(TEXTS, add_special_tokens=False, return_offsets_mapping=True)
    split = ["The", "café", ",", "1895", "Paris's"]
    content = {
        "texts": TEXTS,
        "ids": found["input_ids"],
        "offsets": found["offset_mapping"],
        "masked": MASKED,
        "masked_ids": special(MASKED, add_special_tokens=False)["input_ids"],
        "pair": special("The cat", "the mat")["input_ids"],
        "words": split,
        "word_ids": words(split, add_special_tokens=False, is_split_into_words=True)["input_ids"],
        "transformers": transformers.__version__,
    }
    (FOLDER / "tokens.json").write_text(json.dumps(content) + "\n")


if __name__ == "__main__":
    main()
