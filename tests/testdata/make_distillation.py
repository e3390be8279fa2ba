"""Makes tests/testdata/distillation: a random BERT, two random DistilBERTs, and their losses.

    python tests/testdata/make_distillation.py

Needs PyTorch and transformers (5.23 was used). Each loss is computed as in its source, with PyTorch's loss
functions in float64: DistilBERT's triple loss, TinyBERT's and MiniLM's losses. losses.npz has the inputs, the
losses and some gradients. Only the rows of the triple loss have padding, because TinyBERT's means include
padding.
"""

import pathlib

import numpy as np
import torch
import transformers
from torch.nn import functional

FOLDER = pathlib.Path(__file__).parent / "distillation"
VOCABULARY, LENGTH, TEMPERATURE = 26, 10, 2.0
SCALES = {"logits": 5.0, "task": 2.0, "cosine": 1.0}
LAYERS = (1, 3)  # the teacher's layers for the student's two layers


def make(seed, model, config):
    torch.manual_seed(seed)
    made = model(config).eval()
    with torch.no_grad():
        for name, parameter in made.named_parameters():
            parameter.normal_(float("norm" in name.lower() and name.endswith("weight")), 0.4)
    return made


def student(seed, width):
    config = transformers.DistilBertConfig(
        vocab_size=VOCABULARY, dim=width, n_layers=2, n_heads=2, hidden_dim=2 * width,
        max_position_embeddings=LENGTH, dropout=0.0, attention_dropout=0.0, attn_implementation="eager",
    )  # fmt: skip
    return make(seed, transformers.DistilBertForMaskedLM, config)


def outputs(model, ids, mask):
    """Returns (logits, states of embeddings and layers, {"q": [B, N, L, D] of each layer, "k", "v"})."""
    found = {"q": [], "k": [], "v": []}
    ends = {"q": ("self.query", "q_lin"), "k": ("self.key", "k_lin"), "v": ("self.value", "v_lin")}
    hooks = []
    for name, module in model.named_modules():
        for key, names in ends.items():
            if name.endswith(names):
                hooks.append(module.register_forward_hook(lambda *args, key=key: found[key].append(args[-1])))
    out = model(input_ids=ids, attention_mask=mask, output_hidden_states=True)
    for hook in hooks:
        hook.remove()
    heads = {key: [x.unflatten(-1, (2, -1)).transpose(1, 2) for x in xs] for key, xs in found.items()}
    return out.logits, out.hidden_states, heads


def triple(student, teacher, ids, labels, mask):
    mine, my_states, _ = outputs(student, ids, mask)
    with torch.no_grad():
        theirs, their_states, _ = outputs(teacher, ids, mask)
    found = {"mlm": functional.cross_entropy(mine.flatten(0, 1), labels.flatten(), ignore_index=-100)}
    found["logits at tokens"] = TEMPERATURE**2 * functional.kl_div(
        functional.log_softmax(mine[mask > 0] / TEMPERATURE, -1),
        functional.softmax(theirs[mask > 0] / TEMPERATURE, -1),
        reduction="batchmean",
    )
    x, y = my_states[-1][mask > 0], their_states[-1][mask > 0]
    found["cosine"] = functional.cosine_embedding_loss(x, y, torch.ones(len(x), dtype=x.dtype))
    total = SCALES["logits"] * found["logits at tokens"] + SCALES["task"] * found["mlm"] + found["cosine"]
    student.zero_grad()
    total.backward()
    return found | {"total": total}


def relation(x, y):
    return x @ y.transpose(-1, -2) / x.shape[-1] ** 0.5


def divergence(mine, theirs):
    """MiniLM's divergence, a mean over rows, heads and tokens."""
    return functional.kl_div(mine.log_softmax(-1), theirs.softmax(-1), reduction="none").sum(-1).mean()


def others(narrow, student, teacher, ids, maps):
    mask = torch.ones_like(ids)
    with torch.no_grad():
        _, states, heads = outputs(student, ids, mask)
        _, thin, _ = outputs(narrow, ids, mask)
        _, targets, their_heads = outputs(teacher, ids, mask)
        mse, pairs = functional.mse_loss, list(enumerate(LAYERS))
        scores = [
            mse(relation(heads["q"][i], heads["k"][i]), relation(their_heads["q"][j], their_heads["k"][j]))
            for i, j in pairs
        ]
        found = {
            "scores": sum(scores),
            "hidden": sum(mse(thin[i + 1] @ maps["hidden"], targets[j + 1]) for i, j in pairs),
            "embeddings": mse(thin[0] @ maps["embeddings"], targets[0]),
            "hidden of equal widths": sum(mse(states[i + 1], targets[j + 1]) for i, j in pairs),
        }
        found["attention"] = divergence(
            relation(heads["q"][-1], heads["k"][-1]), relation(their_heads["q"][-1], their_heads["k"][-1])
        )
        mine, theirs = heads["v"][-1], their_heads["v"][2]
        found["values of layer 2"] = divergence(relation(mine, mine), relation(theirs, theirs))
        return found


def main():
    teacher = make(
        0,
        transformers.BertForMaskedLM,
        transformers.BertConfig(
            vocab_size=VOCABULARY, hidden_size=8, num_hidden_layers=4, num_attention_heads=2,
            intermediate_size=12, max_position_embeddings=LENGTH, attn_implementation="eager",
        ),
    )  # fmt: skip
    models = {"teacher": teacher, "student": student(1, 8), "narrow": student(2, 4)}
    for name, model in models.items():
        model.save_pretrained(FOLDER / name)
        (FOLDER / name / "model.safetensors").chmod(0o644)
        model.double()
    rng = np.random.default_rng(0)
    ids = rng.integers(5, VOCABULARY, (3, LENGTH))
    mask = np.ones((3, LENGTH), np.int64)
    mask[1, 7:] = mask[2, 4:] = 0
    chosen = (rng.random((3, LENGTH)) < 0.3) & (mask > 0)
    labels = np.where(chosen, rng.integers(5, VOCABULARY, (3, LENGTH)), -100)
    maps = {name: 0.5 * rng.normal(size=(4, 8)) for name in ("hidden", "embeddings")}
    tensors = [torch.tensor(x) for x in (ids * mask, labels, mask)]
    found = triple(models["student"], teacher, *tensors)
    gradients = {name: p.grad.numpy() for name, p in models["student"].named_parameters()}
    of_maps = {name: torch.tensor(np.float32(x)).double() for name, x in maps.items()}
    found |= others(models["narrow"], models["student"], teacher, torch.tensor(ids), of_maps)
    arrays = {"ids": np.int32(ids), "mask": np.int32(mask), "labels": np.int32(labels)}
    arrays |= {f"map/{name}": np.float32(x) for name, x in maps.items()}
    arrays |= {f"loss/{name}": np.float64(x.detach()) for name, x in found.items()}
    for name in ("embeddings.word_embeddings", "transformer.layer.0.attention.q_lin"):
        arrays[f"gradient/{name}"] = np.float32(gradients[f"distilbert.{name}.weight"])
    norms = [np.linalg.norm(x) for x in gradients.values()]
    np.savez_compressed(FOLDER / "losses.npz", **arrays, gradient_norm=np.linalg.norm(norms))


if __name__ == "__main__":
    main()
