"""Question answering with transformers in PyTorch on the windows and the batches of a `bert-jax finetune`.

    python benchmarks/peer_squad.py windows --vocab=vocab.txt --train=train.json --dev=dev.json \\
        --output=windows.npz
    python benchmarks/peer_squad.py train --windows=windows.npz --model=HF_FOLDER --output=outputs.npy
    python benchmarks/peer_squad.py score --dev=dev.json --vocab=vocab.txt --outputs=outputs.npy

`windows` and `score` run in bert_jax's environment and `train` in one with torch and transformers. Both sides
see the same rows in the same batches, so that what differs is the model, its optimizer and the library; each
pads in its own way, this one to the longest row of a batch.
"""

import argparse
import json
import time

import numpy as np


def _encode(args, path, training):
    from bert_jax import tokenization
    from bert_jax.tasks import squad_reading, squad_windows

    questions = squad_reading.read_questions(path, training=training)
    tokenizer = tokenization.load(args.vocab)
    return questions, squad_windows.encode(questions, tokenizer, args.max_length, args.doc_stride, 64)


def windows(args):
    from bert_jax.tasks import batches

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
    import torch
    from transformers import BertForQuestionAnswering, get_linear_schedule_with_warmup

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

    plain = [p for name, p in model.named_parameters() if "bias" in name or "LayerNorm" in name]
    decayed = [p for name, p in model.named_parameters() if "bias" not in name and "LayerNorm" not in name]
    groups = [{"params": decayed, "weight_decay": 0.01}, {"params": plain, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=args.learning_rate, eps=1e-6)
    schedule = get_linear_schedule_with_warmup(optimizer, int(0.1 * args.steps), args.steps)
    model.train()
    begin, rows_seen = time.time(), 0
    for step, rows in enumerate(data["order"][: args.steps], 1):
        rows = rows[rows >= 0]
        inputs, _ = batch("train", rows)
        for name in ("starts", "ends"):
            key = {"starts": "start_positions", "ends": "end_positions"}[name]
            inputs[key] = torch.from_numpy(data[f"train_{name}"][rows].astype(np.int64))
        loss = model(**inputs).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        rows_seen += len(rows)
        if step % 20 == 0:
            speed = rows_seen / (time.time() - begin)
            print(f"step {step}  loss {loss.item():.4f}  {speed:.1f} seq/s", flush=True)
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
    from bert_jax.tasks import squad_decoding, squad_scores

    questions, data = _encode(args, args.dev, False)
    options = dict(n_best=20, max_answer_length=30, v2=False, null_score_diff_threshold=0.0)
    answers = squad_decoding.decode(questions, data, np.load(args.outputs), **options)
    print(json.dumps(squad_scores.score(questions.answers, answers.texts)))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("command", choices=["windows", "train", "score"])
    for name in ("vocab", "train", "dev", "windows", "model", "outputs", "output"):
        parser.add_argument(f"--{name}")
    for name, default in (
        ("max_length", 384),
        ("doc_stride", 128),
        ("batch_size", 32),
        ("steps", 1000),
        ("epochs", 1),
    ):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--learning_rate", type=float, default=5e-5)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=2)
    given = parser.parse_args()
    {"windows": windows, "train": train, "score": score}[given.command](given)
