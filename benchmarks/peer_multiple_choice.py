"""Fine-tunes transformers' BertForMultipleChoice in PyTorch as `bert-jax finetune` does CODAH.

    python benchmarks/peer_multiple_choice.py --model=FOLDER --train=train.tsv --dev=dev.tsv

CODAH's columns are category, prompt, four endings, and the right one's number. Batches are padded to their
longest row. Prints the accuracy after the last step, and the rate of training in questions a second.
"""

import argparse
import random
import time

import peer_optimizer
import torch
import transformers


def read(path):
    """[(prompt, endings, number of the right one)]"""
    rows = [line.rstrip("\n").split("\t") for line in open(path, encoding="utf-8")]
    return [(row[1], row[2:6], int(row[6])) for row in rows]


def collate(tokenizer, questions, max_seq_length):
    prompts = [prompt for prompt, endings, _ in questions for _ in endings]
    endings = [ending for _, endings, _ in questions for ending in endings]
    batch = tokenizer(
        prompts, endings, truncation=True, max_length=max_seq_length, padding=True, return_tensors="pt"
    )
    batch = {name: values.view(len(questions), 4, -1) for name, values in batch.items()}
    return batch | {"labels": torch.tensor([label for _, _, label in questions])}


def main():
    flags = argparse.ArgumentParser()
    for name in ("model", "train", "dev"):
        flags.add_argument(f"--{name}", required=True)
    flags.add_argument("--epochs", type=int, default=3)
    flags.add_argument("--batch_size", type=int, default=16)
    flags.add_argument("--learning_rate", type=float, default=5e-5)
    flags.add_argument("--max_seq_length", type=int, default=64)
    flags.add_argument("--seed", type=int, default=0)
    flags = flags.parse_args()
    random.seed(flags.seed)
    torch.manual_seed(flags.seed)

    train, dev = read(flags.train), read(flags.dev)
    tokenizer = transformers.AutoTokenizer.from_pretrained(flags.model)
    model = transformers.AutoModelForMultipleChoice.from_pretrained(flags.model)
    steps = flags.epochs * -(-len(train) // flags.batch_size)
    optimizer, schedule = peer_optimizer.make(model, flags.learning_rate, steps)
    model.train()
    began = time.monotonic()
    for _ in range(flags.epochs):
        order = random.sample(train, len(train))
        for start in range(0, len(order), flags.batch_size):
            batch = collate(tokenizer, order[start : start + flags.batch_size], flags.max_seq_length)
            peer_optimizer.update(model, model(**batch).loss, optimizer, schedule)
    seconds = time.monotonic() - began

    model.eval()
    right = 0
    with torch.inference_mode():
        for start in range(0, len(dev), 32):
            batch = collate(tokenizer, dev[start : start + 32], flags.max_seq_length)
            right += int((model(**batch).logits.argmax(-1) == batch["labels"]).sum())
    rate = flags.epochs * len(train) / seconds
    print(f"accuracy {right / len(dev):.4f}  {rate:.1f} questions/s  {steps} steps")


if __name__ == "__main__":
    main()
