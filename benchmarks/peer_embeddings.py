"""Trains a folder with sentence-transformers in PyTorch as `bert-jax finetune` does the task `embedding`.

    python benchmarks/peer_embeddings.py --model=FOLDER --train=pairs.tsv --similarity=glue/STS-B/dev.tsv

The loss is MultipleNegativesRankingLoss, or CoSENTLoss if the pairs have scores; batches are drawn at random
and padded to their longest text. AdamW has the weight decay and the clipping of bert_jax. Prints one line of
JSON: the rate of training in pairs per second, without evaluation and without the first two steps, and
Spearman's correlation of the cosines before and after.
"""

import argparse
import csv
import json
import random
import time

import peer_optimizer
import torch
from scipy import stats
from sentence_transformers import SentenceTransformer, util
from sentence_transformers.sentence_transformer import losses


def read(path, columns):
    with open(path, encoding="utf-8", newline="") as file:
        rows = csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE)
        return [tuple(row[name] for name in columns) for row in rows]


def spearman(model, pairs):
    first, second = (model.encode([pair[i] for pair in pairs], convert_to_tensor=True) for i in (0, 1))
    cosines = util.pairwise_cos_sim(first, second).cpu().numpy()
    return float(stats.spearmanr(cosines, [float(pair[2]) for pair in pairs])[0])


def main():
    flags = argparse.ArgumentParser()
    for name in ("model", "train", "similarity"):
        flags.add_argument(f"--{name}", required=True)
    flags.add_argument("--columns", default="first,second", help="of the pairs; a third one is their score")
    flags.add_argument("--epochs", type=int, default=1)
    flags.add_argument("--batch_size", type=int, default=64)
    flags.add_argument("--learning_rate", type=float, default=5e-5)
    flags.add_argument("--max_seq_length", type=int, default=64)
    flags.add_argument("--seed", type=int, default=0)
    flags = flags.parse_args()
    random.seed(flags.seed)
    torch.manual_seed(flags.seed)

    model = SentenceTransformer(flags.model, device="cpu")
    model.max_seq_length = flags.max_seq_length
    columns = flags.columns.split(",")
    train = read(flags.train, columns)
    judged = read(flags.similarity, ("sentence1", "sentence2", "score"))
    before = spearman(model, judged)
    scored = len(columns) == 3
    loss = losses.CoSENTLoss(model) if scored else losses.MultipleNegativesRankingLoss(model)
    steps = flags.epochs * -(-len(train) // flags.batch_size)
    optimizer, schedule = peer_optimizer.make(model, flags.learning_rate, steps)
    model.train()
    done = 0
    for _ in range(flags.epochs):
        order = random.sample(train, len(train))
        for start in range(0, len(order), flags.batch_size):
            batch = order[start : start + flags.batch_size]
            if done == 2:
                began, counted = time.monotonic(), 0
            inputs = [model.preprocess([pair[i] for pair in batch]) for i in (0, 1)]
            labels = torch.tensor([float(pair[2]) for pair in batch]) if scored else None
            peer_optimizer.update(model, loss(inputs, labels), optimizer, schedule)
            done += 1
            counted = counted + len(batch) if done > 2 else 0
    seconds = time.monotonic() - began
    model.eval()
    after = spearman(model, judged)
    print(
        json.dumps({"pairs_per_second": counted / seconds, "before": before, "after": after, "steps": steps})
    )


if __name__ == "__main__":
    main()
