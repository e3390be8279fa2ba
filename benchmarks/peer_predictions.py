"""Predicts a task of GLUE with an exported folder in transformers, beside the predictions of bert_jax.

    python benchmarks/peer_predictions.py --model=FOLDER --input=dev.tsv --predictions=predictions-dev.tsv

Prints JSON: rows, how many have the same label, the largest difference of a probability (files of predictions
have six decimals), the accuracy of transformers, and the keys that were missing or unexpected in the folder.
"""

import argparse
import json

import torch
import transformers


def main():
    flags = argparse.ArgumentParser()
    for name in ("model", "input", "predictions"):
        flags.add_argument(f"--{name}", required=True)
    flags = flags.parse_args()

    def read(path):
        return [line.rstrip("\n").split("\t") for line in open(path, encoding="utf-8")][1:]

    rows, ours = read(flags.input), read(flags.predictions)
    tokenizer = transformers.AutoTokenizer.from_pretrained(flags.model)
    model, info = transformers.AutoModelForSequenceClassification.from_pretrained(
        flags.model, output_loading_info=True
    )
    model.eval()
    equal = right = 0
    difference = 0.0
    with torch.inference_mode():
        for (text, label), (_, prediction, *probabilities) in zip(rows, ours, strict=True):
            given = tokenizer(text, truncation=True, max_length=128, return_tensors="pt")
            found = model(**given).logits[0].softmax(-1)
            name = model.config.id2label[int(found.argmax())]
            equal += name == prediction
            right += name == label
            difference = max(
                difference, *(abs(p - float(q)) for p, q in zip(found.tolist(), probabilities, strict=True))
            )
    result = {
        "model": type(model).__name__,
        "rows": len(rows),
        "equal": equal,
        "largest_difference": difference,
        "accuracy": right / len(rows),
        "missing": sorted(info["missing_keys"]),
        "unexpected": sorted(info["unexpected_keys"]),
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
