"""The timed workloads of the other libraries: transformers in PyTorch, and ONNX Runtime.

`python benchmarks/compare` runs each one in a separate process, with a Python that has these libraries. The
architecture and the rows come from the folder that `ours.py prepare` wrote. The default is the fastest setup:
scaled-dot-product attention, torch.compile, fused AdamW, and the masked LM head on the predicted positions
only. --stock uses eager PyTorch with eager attention and logits at every position.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time

import measure
import numpy as np


def load(args, auto: str, variant: dict, **fields):
    """Returns a transformers model with random weights, and the device."""
    import torch
    import transformers

    # Without kernel libraries, transformers would log a message for each, which would hide the rest.
    transformers.logging.set_verbosity_error()
    torch.manual_seed(0)
    config = transformers.AutoConfig.from_pretrained(args.folder)
    rates = {
        "dropout": ("hidden_dropout_prob", "dropout", "embedding_dropout", "mlp_dropout"),
        "attention_dropout": ("attention_probs_dropout_prob", "attention_dropout"),
    }
    for rate, names in rates.items():
        for name in names:
            if hasattr(config, name):
                setattr(config, name, variant[rate])
    for name, value in fields.items():
        setattr(config, name, value)
    config._attn_implementation = "eager" if args.stock else "sdpa"
    config.reference_compile = False  # ModernBERT's own compilation; the whole step is compiled here
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if auto == "AutoModelForPreTraining" and config.model_type != "bert":
        auto = "AutoModelForMaskedLM"
    return getattr(transformers, auto).from_config(config).to(device), device


def stored(args, variant: dict) -> tuple[np.ndarray, np.ndarray, int]:
    """Returns the rows that bert_jax uses: int64 ids and mask [B, L], and the predictions per row."""
    found = np.load(os.path.join(args.folder, f"{variant['rows']}-{args.batch}x{args.length}.npz"))
    real = np.arange(args.length) < found["lengths"][:, None]
    return found["input_ids"].astype(np.int64), real.astype(np.int64), int(found["predictions"])


def rows(args, variant: dict, device: str) -> dict:
    """Returns the inputs of a transformers model: ids, and a mask if there is padding."""
    import torch

    ids, mask, _ = stored(args, variant)
    arrays = {"input_ids": ids} if mask.all() else {"input_ids": ids, "attention_mask": mask}
    return {name: torch.from_numpy(array).to(device) for name, array in arrays.items()}


def take_turns(args, side: str, kind: str, calls) -> None:
    """Calls `measure.take_turns` on (variant, function) pairs."""
    cases = [
        measure.Case(measure.case(kind, args, variant), "sequences/s", args.batch, call)
        for variant, call in calls
    ]
    measure.take_turns(args, side, cases, after=free)


def free() -> None:
    """Frees unused GPU memory, because the processes of the other sides keep running on the GPU."""
    if "torch" in sys.modules:
        sys.modules["torch"].cuda.empty_cache()


def side(args) -> str:
    return "PyTorch" if args.stock else "PyTorch, compiled"


def waits(device: str, call):
    """Returns a function that makes the call and waits until the device has finished."""
    import torch

    def waiting():
        call()
        if device == "cuda":
            torch.cuda.synchronize()

    return waiting


def step(args, model, device: str, variant: dict, loss):
    """Returns a function that runs one training step; `loss` returns the loss."""
    import torch

    fused = {} if args.stock else {"fused": True}
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.01, **fused)
    loss = loss if args.stock else torch.compile(loss)

    def call():
        with torch.autocast(device, torch.bfloat16, enabled=variant["dtype"] == "bfloat16"):
            found = loss()
        found.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return waits(device, call)


def pretraining(args, variant: dict):
    """Returns a function that runs one masked LM step; for BERT also with next-sentence prediction."""
    import torch

    model, device = load(args, "AutoModelForPreTraining", variant)
    model.train()
    inputs = rows(args, variant, device)
    ids = inputs["input_ids"]
    _, _, count = stored(args, variant)
    generator = torch.Generator().manual_seed(0)
    places = torch.stack(
        [torch.randperm(args.length, generator=generator)[:count] for _ in range(args.batch)]
    )
    places = places.sort().values.to(device)
    targets = ids.gather(1, places)
    inputs["input_ids"] = ids.scatter(1, places, 103)
    every = torch.full_like(ids, -100).scatter(1, places, targets)
    next_sentence = (torch.arange(args.batch, device=device) % 2).long()
    labels = {"labels": every}
    if model.config.model_type == "bert":
        labels["next_sentence_label"] = next_sentence
    cross_entropy = torch.nn.functional.cross_entropy

    def stock():
        return model(**inputs, **labels).loss

    def gathered():
        out = model.base_model(**inputs)
        hidden = out[0].gather(1, places[..., None].expand(-1, -1, out[0].shape[-1]))
        if model.config.model_type == "bert":
            logits, relation = model.cls(hidden, out[1])
            return cross_entropy(logits.float().flatten(0, 1), targets.flatten()) + cross_entropy(
                relation.float(), next_sentence
            )
        return cross_entropy(
            HEADS[model.config.model_type](model, hidden).float().flatten(0, 1), targets.flatten()
        )

    return step(args, model, device, variant, stock if args.stock else gathered)


# The masked LM head on hidden states, by family.
HEADS = {
    "roberta": lambda model, hidden: model.lm_head(hidden),
    "albert": lambda model, hidden: model.predictions(hidden),
    "modernbert": lambda model, hidden: model.decoder(model.head(hidden)),
    "distilbert": lambda model, hidden: model.vocab_projector(
        model.vocab_layer_norm(model.activation(model.vocab_transform(hidden)))
    ),
}


def train(args) -> None:
    variants = map(measure.variant, args.variants)
    take_turns(args, side(args), "train", [(variant, pretraining(args, variant)) for variant in variants])


def finetune(args) -> None:
    import torch

    calls = []
    for variant in map(measure.variant, args.variants):
        model, device = load(args, "AutoModelForSequenceClassification", variant, num_labels=2)
        model.train()
        inputs = rows(args, variant, device)
        labels = (torch.arange(args.batch, device=device) % 2).long()
        call = step(
            args,
            model,
            device,
            variant,
            lambda model=model, inputs=inputs, labels=labels: torch.nn.functional.cross_entropy(
                model(**inputs).logits.float(), labels
            ),
        )
        calls.append((variant, call))
    take_turns(args, side(args), "finetune", calls)


def forward(args) -> None:
    if args.onnx:
        return onnx(args)
    import torch

    calls = []
    for variant in map(measure.variant, args.variants):
        model, device = load(args, "AutoModel", variant)
        model.eval()
        inputs = rows(args, variant, device)
        apply = model if args.stock else torch.compile(model)

        def call(apply=apply, inputs=inputs, device=device, variant=variant):
            with (
                torch.inference_mode(),
                torch.autocast(device, torch.bfloat16, enabled=variant["dtype"] == "bfloat16"),
            ):
                return apply(**inputs)[0]

        calls.append((variant, waits(device, call)))
    take_turns(args, side(args), "forward", calls)


def onnx(args) -> None:
    import onnxruntime

    path = os.path.join(args.folder, "onnx/model.onnx")
    session, calls = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"]), []
    for variant in map(measure.variant, args.variants):
        ids, mask, _ = stored(args, variant)
        given = {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}
        given = {one.name: given[one.name] for one in session.get_inputs()}
        calls.append((variant, lambda given=given: session.run(["last_hidden_state"], given)))
    take_turns(args, "ONNX Runtime", "forward", calls)


def first_step(args) -> None:
    """One pre-training step in a new process; the runner takes the time of the whole process."""
    (variant,) = map(measure.variant, args.variants)
    pretraining(args, variant)()


def checkpoint(args) -> None:
    """Times torch.save of model and optimizer, which blocks training."""
    import torch

    (variant,) = map(measure.variant, args.variants)
    model, _ = load(args, "AutoModelForPreTraining", variant)
    optimizer = torch.optim.AdamW(model.parameters())
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    seconds = []
    with tempfile.TemporaryDirectory(dir=args.scratch) as folder:
        for number in range(1 + args.steps):
            began = time.perf_counter()
            torch.save(
                {"model": model.state_dict(), "optimizer": optimizer.state_dict()}, f"{folder}/{number % 2}"
            )
            seconds.append(time.perf_counter() - began)
    for kind in ("checkpoint, training waits", "checkpoint, stored"):
        measure.emit(
            what=measure.case(kind, args), side="PyTorch", unit="s", **measure.durations(seconds[1:])
        )


def matrix(args) -> None:
    """Times matmuls of random matrices, as `ours.py` does."""
    import torch

    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.backends.cuda.matmul.allow_tf32 = True  # as jax does by default
    dtype, inner = getattr(torch, args.dtype), 10
    a, b = (torch.randn(args.size, args.size, device=device).to(dtype) for _ in "ab")
    a = a * args.size**-0.5

    def product():
        y = b
        for _ in range(inner):
            y = a @ y

    case = measure.Case(
        what={"kind": "matrix", "size": args.size, "dtype": args.dtype},
        unit="FLOP/s",
        amount=2 * args.size**3 * inner,
        call=waits(device, product),
        fields={"device": torch.cuda.get_device_name() if device == "cuda" else "cpu"},
    )
    measure.take_turns(args, "PyTorch", [case], after=free)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--stock", action="store_true")
    parser.add_argument("--onnx", action="store_true", help="forward in ONNX Runtime")
    measure.add_parts(parser.add_subparsers(dest="part", required=True))
    args = parser.parse_args()
    functions = (matrix, train, finetune, forward, first_step, checkpoint)
    {function.__name__: function for function in functions}[args.part](args)


if __name__ == "__main__":
    main()
