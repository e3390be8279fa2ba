"""Fine-tunes transformers' BertForTokenClassification in PyTorch as `bert-jax finetune` does a task of tags.

    python benchmarks/peer_tagging.py --model=FOLDER --train=train.conll --dev=dev.conll --output=out.conll

Labels are on first word-pieces, batches are padded to their longest sentence, AdamW has the weight decay and
the clipping of bert_jax, and transformers' linear schedule. Writes a word, its tag and the prediction a line,
and prints the rate of training in sentences per second, without evaluation.
"""

import argparse
import random
import time

import peer_optimizer
import torch
import transformers


def read(path):
    """[(words, tags)] of CoNLL columns; the first is the word, the last the tag in IOB1, taken to BIO2."""
    sentences, words, tags, previous = [], [], [], "O"
    for line in [*open(path, encoding="utf-8"), "\n"]:
        fields = line.split()
        if not fields or fields[0] == "-DOCSTART-":
            if words:
                sentences.append((words, tags))
            words, tags, previous = [], [], "O"
            continue
        tag = fields[-1]
        begins = tag.startswith("I-") and previous[1:] != tag[1:]
        words.append(fields[0])
        tags.append("B" + tag[1:] if begins else tag)
        previous = tag
    return sentences


def encode(tokenizer, sentences, labels, max_seq_length):
    """[(ids, the word that each first piece is of, else -1, its label, else -100)]"""
    rows = []
    for words, tags in sentences:
        ids, places, targets = [tokenizer.cls_token_id], [-1], [-100]
        for number, (word, tag) in enumerate(zip(words, tags, strict=True)):
            pieces = tokenizer.encode(word, add_special_tokens=False) or [tokenizer.unk_token_id]
            ids += pieces
            places += [number] + [-1] * (len(pieces) - 1)
            targets += [labels.index(tag)] + [-100] * (len(pieces) - 1)
        cut = max_seq_length - 1
        rows.append(([*ids[:cut], tokenizer.sep_token_id], [*places[:cut], -1], [*targets[:cut], -100]))
    return rows


def collate(rows, pad):
    length = max(len(row[0]) for row in rows)

    def stack(column, fill):
        return torch.tensor([row[column] + [fill] * (length - len(row[column])) for row in rows])

    ids = stack(0, pad)
    return {"input_ids": ids, "attention_mask": stack(1, -2) > -2, "labels": stack(2, -100)}


def main():
    flags = argparse.ArgumentParser()
    for name in ("model", "train", "dev", "output"):
        flags.add_argument(f"--{name}", required=True)
    flags.add_argument("--epochs", type=int, default=3)
    flags.add_argument("--batch_size", type=int, default=32)
    flags.add_argument("--learning_rate", type=float, default=1e-4)
    flags.add_argument("--max_seq_length", type=int, default=128)
    flags.add_argument("--seed", type=int, default=0)
    flags = flags.parse_args()
    random.seed(flags.seed)
    torch.manual_seed(flags.seed)

    train, dev = read(flags.train), read(flags.dev)
    types = sorted({tag[2:] for _, tags in train for tag in tags if tag != "O"})
    labels = ["O"] + [f"{prefix}-{type}" for type in types for prefix in "BI"]
    tokenizer = transformers.AutoTokenizer.from_pretrained(flags.model)
    model = transformers.AutoModelForTokenClassification.from_pretrained(flags.model, num_labels=len(labels))
    rows = {
        name: encode(tokenizer, found, labels, flags.max_seq_length)
        for name, found in (("train", train), ("dev", dev))
    }

    steps = flags.epochs * -(-len(train) // flags.batch_size)
    optimizer, schedule = peer_optimizer.make(model, flags.learning_rate, steps)
    model.train()
    began = time.monotonic()
    for epoch in range(flags.epochs):
        order = random.sample(rows["train"], len(train))
        for start in range(0, len(order), flags.batch_size):
            loss = model(**collate(order[start : start + flags.batch_size], tokenizer.pad_token_id)).loss
            peer_optimizer.update(model, loss, optimizer, schedule)
        print(f"epoch {epoch + 1}: loss of the last batch {loss.item():.4f}", flush=True)
    seconds = time.monotonic() - began
    print(
        f"{flags.epochs * len(train) / seconds:.1f} sentences/s in {seconds:.0f} s of training, {steps} steps"
    )

    model.eval()
    with torch.inference_mode(), open(flags.output, "w", encoding="utf-8") as file:
        for start in range(0, len(dev), flags.batch_size):
            part = rows["dev"][start : start + flags.batch_size]
            best = model(**collate(part, tokenizer.pad_token_id)).logits.argmax(-1)
            for (words, tags), (_, places, _), found in zip(
                dev[start : start + flags.batch_size], part, best, strict=True
            ):
                guess = ["O"] * len(words)
                for place, label in zip(places, found.tolist(), strict=False):
                    if place >= 0:
                        guess[place] = labels[label]
                file.writelines(f"{w} {t} {g}\n" for w, t, g in zip(words, tags, guess, strict=True))
                file.write("\n")


if __name__ == "__main__":
    main()
