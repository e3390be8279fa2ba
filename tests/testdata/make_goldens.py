"""Writes tests/testdata/goldens: small random models of transformers and what they compute, and token ids.

    python tests/testdata/make_goldens.py

Needs PyTorch and transformers (5.23 was used). Each folder has a model as transformers saves it, and
golden.npz with its inputs (`in/`), labels (`label/`), outputs and loss (`out/`), and the gradient of the loss
(`grad/`). tokens.json has the ids of texts with the vocabulary vocab.txt.
"""

import json
import shutil
from pathlib import Path

import numpy as np
import torch
import transformers
from transformers import BertConfig, BertTokenizer

FOLDER = Path(__file__).resolve().parent / "goldens"
ROWS, LENGTH, CHOICES, VOCAB = 3, 20, 2, 61
SIZE = dict(
    vocab_size=VOCAB,
    hidden_size=16,
    num_hidden_layers=2,
    num_attention_heads=4,
    intermediate_size=24,
    max_position_embeddings=24,
    hidden_dropout_prob=0.0,
    attention_probs_dropout_prob=0.0,
)

# {folder: (class, fields of the configuration)}
MODELS = {
    "encoder": ("BertModel", {}),
    "pretraining": ("BertForPreTraining", {}),
    "pretraining-tanh": ("BertForPreTraining", {"hidden_act": "gelu_new", "num_hidden_layers": 3}),
    "masked-lm-relu": ("BertForMaskedLM", {"hidden_act": "relu", "layer_norm_eps": 1e-3}),
    "classification": ("BertForSequenceClassification", {"num_labels": 3}),
    "regression": ("BertForSequenceClassification", {"num_labels": 1}),
    "multilabel": (
        "BertForSequenceClassification",
        {"num_labels": 3, "problem_type": "multi_label_classification"},
    ),
    "tagging": ("BertForTokenClassification", {"num_labels": 5}),
    "questions": ("BertForQuestionAnswering", {}),
    "multiple-choice": ("BertForMultipleChoice", {}),
}

PIECES = (
    "[PAD] [unused0] [UNK] [CLS] [SEP] [MASK] ! \" # $ % & ' ( ) * + , - . / 0 1 2 3 : ; < = > ? @ [ \\ ] ^ "
    "_ ` { | } ~ a b c d e i n o s t u x y z A B N É é ü ß ñ ##a ##b ##c ##d ##e ##i ##n ##s ##t ##u ##é "
    "##ing ##ed ##ly ##able the The of in is and un want wanted naive naïve cafe café resume résumé ангел "
    "мир ##р 東 京 都 大 ı ##ı İ σ ς ##ς ##σ don can isn ##isn 100 ##0 £ € “ ” — … ’ ½ ² ##² ﬁ fi ##x "
    "ό λ ##λ ο ό ##ο का ##क ि ##ि ก ่ 한 국 ᄒ ##ᅡ ##ᆫ 👍 ✈ ##️"
).split()

TEXTS = [
    "The wanted unwanted wantingly, unable!",
    "naïve Café résumé RÉSUMÉ cafe\u0301",
    "don't can't isn't “the” — … ‘x’",
    "東京都 in大the 東",
    "",
    "   \t\n\r  ",
    "a\u00a0b\u2003c\u3000d",
    "a\u200bb\u200dc\ufeffd\u00ade",
    "a\x00b\ufffdc\x07d",
    "[MASK] of [CLS] and [mask]",
    "100%£1€2²3½",
    "ﬁn ßs İi ıI ÉÑ",
    "ΣΊΣΥΦΟΣ ςσ όλο",
    "ангел МИР мир",
    "한국 한국",
    "का कि",
    "ก่ก",
    "👍✈️ the",
    "a" * 100,
    "a" * 101,
    "the" * 40,
    "un" + "b" * 30 + " " + "zzz",
    "a_b-c/d\\e`f~g^h|i{j}k",
    "the\u2028of\u2029in\u0085is",
    "\u202ethe\u202c of",
    "x\ud7fb\U0001f469\u200d\U0001f680y",
    "ab " * 20,
    "ńǹ é́ ẛ̣",
    "The The THE tHe",
    "##ing ## #a",
]


def spread(model):
    """Weights so large that no output is degenerate and every parameter matters."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "LayerNorm" in name and name.endswith("weight"):
                parameter.normal_(1, 0.2)
            elif name.endswith("bias") or parameter.ndim == 1:
                parameter.normal_(0, 0.2)
            elif "embeddings" in name:
                parameter.normal_(0, 0.3)
            else:
                parameter.normal_(0, 1.5 * parameter.shape[1] ** -0.5)
    return model.eval()


def inputs(generator, choices):
    rows = ROWS * choices
    lengths = generator.integers(LENGTH // 2, LENGTH + 1, rows)
    lengths[0] = LENGTH
    index = np.arange(LENGTH)
    real = index < lengths[:, None]
    firsts = generator.integers(3, lengths - 2)
    return {
        "input_ids": generator.integers(1, VOCAB, (rows, LENGTH)) * real,
        "attention_mask": real.astype(int),
        "token_type_ids": (real & (index >= firsts[:, None])).astype(int),
    }


def labels(generator, name, cls, given, config):
    """The labels of a model by the names of its arguments."""
    real = given["attention_mask"] > 0
    if cls == "BertForPreTraining" or cls == "BertForMaskedLM":
        masked = (generator.random(real.shape) < 0.3) & real
        found = {"labels": np.where(masked, generator.integers(1, VOCAB, real.shape), -100)}
        next_sentence = {"next_sentence_label": np.arange(ROWS) % 2} if cls == "BertForPreTraining" else {}
        return found | next_sentence
    if cls == "BertForTokenClassification":
        first = (generator.random(real.shape) < 0.7) & real
        return {"labels": np.where(first, generator.integers(0, config.num_labels, real.shape), -100)}
    if cls == "BertForQuestionAnswering":
        last = real.sum(1) - 1
        return {"start_positions": last // 3, "end_positions": last // 2}
    if cls == "BertForMultipleChoice":
        return {"labels": np.array([1, 0, 1])}
    if name == "regression":
        return {"labels": np.float32([0.5, -1.25, 2.0])}
    if name == "multilabel":
        return {"labels": np.float32([[1, 0, 1], [0, 0, 0], [0, 1, 1]])}
    return {"labels": np.array([2, 0, 1])} if cls == "BertForSequenceClassification" else {}


def write_model(number, name, cls, fields):
    torch.manual_seed(number)
    generator = np.random.default_rng(number)
    config = BertConfig(**(SIZE | fields), attn_implementation="eager")
    model = spread(getattr(transformers, cls)(config))
    given = inputs(generator, CHOICES if cls == "BertForMultipleChoice" else 1)
    if name == "tagging":  # of one text
        given["token_type_ids"] = np.zeros_like(given["token_type_ids"])
    target = labels(generator, name, cls, given, config)

    def tensor(array):
        if cls == "BertForMultipleChoice" and array.ndim == 2:
            array = array.reshape(ROWS, CHOICES, LENGTH)
        return torch.tensor(np.asarray(array, np.float32 if array.dtype == np.float32 else np.int64))

    outputs = model(
        **{key: tensor(array) for key, array in (given | target).items()}, output_hidden_states=True
    )
    arrays = {f"in/{key}": np.int32(array) for key, array in given.items()}
    arrays |= {
        f"label/{key}": array if array.dtype == np.float32 else np.int32(array)
        for key, array in target.items()
    }
    for key, value in outputs.items():
        if key == "hidden_states":
            arrays["out/hidden_states"] = np.stack([state.detach().numpy() for state in value])
        else:
            arrays[f"out/{key}"] = value.detach().numpy()
    if target:
        outputs.loss.backward()
        arrays |= {f"grad/{key}": p.grad.numpy() for key, p in model.named_parameters()}
    folder = FOLDER / name
    model.save_pretrained(folder)
    np.savez_compressed(folder / "golden.npz", **arrays)


def write_tokens():
    """vocab.txt, and the ids of TEXTS by BertTokenizer, cased and uncased."""
    pieces = list(dict.fromkeys(PIECES))
    (FOLDER / "vocab.txt").write_text("\n".join(pieces) + "\n", encoding="utf-8")
    found = {"texts": TEXTS}
    for kind, lower in (("uncased", True), ("cased", False)):
        tokenizer = BertTokenizer(vocab=str(FOLDER / "vocab.txt"), do_lower_case=lower)
        found[kind] = [tokenizer(text, add_special_tokens=False)["input_ids"] for text in TEXTS]
    (FOLDER / "tokens.json").write_text(json.dumps(found, ensure_ascii=True) + "\n")


def main():
    if FOLDER.exists():
        shutil.rmtree(FOLDER)
    FOLDER.mkdir()
    for number, (name, (cls, fields)) in enumerate(MODELS.items()):
        write_model(number, name, cls, fields)
    write_tokens()


if __name__ == "__main__":
    main()
