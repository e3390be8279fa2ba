"""Question answering with transformers in PyTorch on the windows and the batches of a `bert-jax finetune`.

    python benchmarks/peer_squad.py windows --vocab=vocab.txt --train=train.json --dev=dev.json \\
        --output=windows.npz
    python benchmarks/peer_squad.py train --windows=windows.npz --model=HF_FOLDER --output=outputs.npy
    python benchmarks/peer_squad.py score --dev=dev.json --vocab=vocab.txt --outputs=outputs.npy
    python benchmarks/peer_squad.py split --train=dev-v2.0.json --output=NAME      # NAME-train, NAME-dev

`windows`, `score` and `split` run in bert_jax's environment, `train` in one with torch and transformers. Both
sides see the same rows in the same batches, so that what differs is the model, its optimizer and the library;
each pads in its own way, this one to the longest row of a batch.
"""

import argparse
import json
import time

import numpy as np


def _encode(args, path, training):
    from bert_jax import tokenization
    from bert_jax.tasks.question_answering import encoding, question_files

    questions = question_files.read_questions(path, training=training, v2=args.v2)
    tokenizer = tokenization.load(args.vocab)
    return questions, encoding.encode(questions, tokenizer, args.max_seq_length, args.doc_stride, 64)


def windows(args):
    from bert_jax.tasks.rows import batches

    arrays = {}
    for split, path in (("train", args.train), ("dev", args.dev)):
        data = _encode(args, path, split == "train")[1]
        for name in ("tokens", "offsets", "first_lengths"):
            arrays[f"{split}_{name}"] = getattr(data, name)
        arrays |= {f"{split}_{name}": values for name, values in data.targets.items()}
        if split == "train":
            orders = [
                batches.epoch_order(data.lengths, args.batch_size, args.seed, e) for e in range(args.epochs)
            ]
            arrays["order"] = np.concatenate(orders)
    np.savez(args.output, **arrays)


def train(args):
    import peer_optimizer
    import torch
    from transformers import BertForQuestionAnswering

    torch.manual_seed(args.seed)
    torch.set_num_threads(args.threads)
    data = np.load(args.windows)
    data = {name: data[name] for name in data.files}
    model = BertForQuestionAnswering.from_pretrained(args.model)

    def batch(split, rows):
        offsets = data[f"{split}_offsets"]
        lengths = offsets[rows + 1] - offsets[rows]
        ids = np.zeros((len(rows), lengths.max()), np.int64)
        for place, row in enumerate(rows):
            ids[place, : lengths[place]] = data[f"{split}_tokens"][offsets[row] : offsets[row + 1]]
        index = np.arange(ids.shape[1])
        real = index < lengths[:, None]
        segments = real & (index >= data[f"{split}_first_lengths"][rows][:, None])
        arrays = {"input_ids": ids, "attention_mask": real, "token_type_ids": segments}
        return {name: torch.from_numpy(array.astype(np.int64)) for name, array in arrays.items()}, lengths

    optimizer, schedule = peer_optimizer.make(model, args.learning_rate, args.steps)
    model.train()
    begin, rows_seen, losses = time.time(), 0, []
    for step, rows in enumerate(data["order"][: args.steps], 1):
        rows = rows[rows >= 0]
        inputs, _ = batch("train", rows)
        for name in ("starts", "ends"):
            key = {"starts": "start_positions", "ends": "end_positions"}[name]
            inputs[key] = torch.from_numpy(data[f"train_{name}"][rows].astype(np.int64))
        loss = model(**inputs).loss
        peer_optimizer.update(model, loss, optimizer, schedule)
        rows_seen += len(rows)
        losses.append(loss.item())
        if step % 20 == 0:
            speed = rows_seen / (time.time() - begin)
            mean = sum(losses[-20:]) / 20
            print(f"step {step}  mean loss {mean:.4f}  {speed:.1f} seq/s", flush=True)
    model.eval()
    offsets = data["dev_offsets"]
    outputs = np.empty((offsets[-1], 2), np.float32)
    order = np.argsort(np.diff(offsets), kind="stable")
    with torch.no_grad():
        for rows in np.split(order, range(64, len(order), 64)):
            inputs, lengths = batch("dev", rows)
            found = model(**inputs)
            logits = torch.stack([found.start_logits, found.end_logits], -1).numpy()
            for place, row in enumerate(rows):
                outputs[offsets[row] : offsets[row + 1]] = logits[place, : lengths[place]]
    np.save(args.output, outputs)


def score(args):
    from bert_jax.tasks.question_answering import decoding, squad_scores

    questions, data = _encode(args, args.dev, False)
    options = dict(n_best=20, max_answer_length=30, v2=args.v2, null_score_diff_threshold=0.0)
    found = decoding.decode(questions, data, np.load(args.outputs), **options)
    if args.v2:
        scores = squad_scores.score_v2(questions.answers, found.texts, found.non_null, found.null_odds)
    else:
        scores = squad_scores.score(questions.answers, found.texts)
    print(json.dumps(scores))


def split(args):
    """Every fifth article is held out."""
    with open(args.train, encoding="utf-8") as file:
        whole = json.load(file)
    for name, held_out in (("train", False), ("dev", True)):
        articles = [a for i, a in enumerate(whole["data"]) if (i % 5 == 4) == held_out]
        with open(f"{args.output}-{name}.json", "w", encoding="utf-8") as file:
            json.dump({"version": whole.get("version", ""), "data": articles}, file)
        questions = sum(len(paragraph["qas"]) for article in articles for paragraph in article["paragraphs"])
        print(f"{name}: {len(articles)} articles, {questions:,} questions")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("command", choices=["split", "windows", "train", "score"])
    for name in ("vocab", "train", "dev", "windows", "model", "outputs", "output"):
        parser.add_argument(f"--{name}")
    for name, default in (
        ("max_seq_length", 384),
        ("doc_stride", 128),
        ("batch_size", 32),
        ("steps", 1000),
        ("epochs", 1),
    ):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--learning_rate", type=float, default=5e-5)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--v2", action="store_true", help="questions may have no answer")
    given = parser.parse_args()
    {"split": split, "windows": windows, "train": train, "score": score}[given.command](given)
