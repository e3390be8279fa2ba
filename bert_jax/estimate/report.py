"""Formats an estimate as lines of text."""

from __future__ import annotations

from typing import Any

from bert_jax.io.wording import counted

_GIB = 2.0**30
_WIDTH = 12


def lines(result: dict[str, Any]) -> list[str]:
    """Returns the lines for a result of `measure.estimate`."""
    versions = ", ".join(f"{name} {version}" for name, version in result["versions"].items())
    chips = "GPUs" if "hosts" in result["topology"] else "TPUs"
    parts = [
        ("estimate", [f"nothing here is measured: compiled for {chips} that are not attached ({versions})"]),
        ("model", [_model(result["model"])]),
        ("hardware", [_hardware(result)]),
        ("batch", [_batch(result)]),
        ("memory", _memory(result)),
    ]
    if result["fits"]:
        traffic = ("traffic", [_collective(entry) for entry in result["collectives"]] or ["none"])
        parts += [("FLOPs", [_flops(result)])]
        if chips == "GPUs":
            parts += [traffic, ("roofline", _roofline(result))]
        else:
            parts += [traffic, ("step", _step(result)), ("speed", [_speed(result)]), ("run", [_run(result)])]
    return [
        f"{title if index == 0 else '':<{_WIDTH}}{line}"
        for title, texts in parts
        for index, line in enumerate(texts)
    ]


def _model(model: dict[str, Any]) -> str:
    dropout = f"{model['hidden_dropout_prob']} and {model['attention_probs_dropout_prob']}"
    return (
        f"{counted(model['num_hidden_layers'], 'layer')} of {model['hidden_size']}, {model['dtype']}, "
        f"dropout {dropout}, attention {model['attention']}, remat {model['remat']}, scan_unroll "
        f"{model['scan_unroll']}"
    )


def _hardware(result: dict[str, Any]) -> str:
    topology = result["topology"]
    mesh = " ".join(f"{axis}={size}" for axis, size in result["mesh"].items())
    if "hosts" in topology:
        gpus, hosts = counted(topology["chips"], "GPU"), counted(topology["hosts"], "host")
        return f"{topology['name']}, {gpus} of {hosts}; mesh {mesh}"
    several = f"{topology['slices']} slices of " if topology["slices"] > 1 else ""
    return f"{several}{topology['name']}, {counted(topology['chips'], 'chip')}; mesh {mesh}"


def _batch(result: dict[str, Any]) -> str:
    rows = result["rows"]
    parts = f", in {result['accumulate_steps']} parts" if result["accumulate_steps"] > 1 else ""
    return (
        f"{counted(result['batch_size'], 'row')} of {rows['length']}, {result['rows_per_chip']} per "
        f"chip{parts}; {rows['sequences']:.2f} sequences per row, {rows['fill']:.1%} filled, "
        f"{rows['predictions']} predicted ({rows['source']})"
    )


def _memory(result: dict[str, Any]) -> list[str]:
    memory, available = result["memory_bytes"], result["memory_limit_bytes"]
    if result["fits"]:
        texts = [
            f"fits: {_gib(memory['total'])} of {_gib(available)} GiB per chip{_of_whole(result)}",
            f"parameters {_gib(memory['parameters'])}, optimizer {_gib(memory['optimizer'])}, "
            f"batch {_gib(memory['batch'])}, activations and temporary {_gib(memory['temporary'])}, "
            f"program {_gib(memory['program'])}, padding {_gib(memory['padding'])}",
        ]
    else:
        texts = [
            f"DOES NOT FIT: needs {_gib(memory['total'])} GiB per chip; available: "
            f"{_gib(memory['available'])}{_of_whole(result)}"
        ]
    if "hosts" in result["topology"]:
        texts.append("without cuDNN's workspace and NCCL's buffers, whose sizes are known only on the GPU")
    if "largest_batch" in result:
        largest = result["largest_batch"]
        if largest["batch_size"]:
            texts.append(
                f"the largest batch that fits, to within an eighth: {counted(largest['batch_size'], 'row')}, "
                f"{largest['rows_per_chip']} per chip"
            )
        else:
            texts.append(
                "not even one row per chip fits: split the model, with --config.mesh.fsdp or "
                "--config.mesh.tensor, or set --config.model.remat=full"
            )
    return texts


def _flops(result: dict[str, Any]) -> str:
    model, matrix = result["flops"]["model"], result["flops"]["matrix_per_chip"]
    per_chip = model / result["topology"]["chips"]
    return (
        f"model: {model / 1e12:,.2f} TFLOP per step, {per_chip / 1e12:.3f} per chip; matrix units of a chip: "
        f"{matrix / 1e12:.3f} ({matrix / per_chip:.2f} x)"
    )


def _collective(entry: dict[str, Any]) -> str:
    over = ", ".join(entry["axes"]) or "groups of an unknown shape"
    unit = "" if entry["axes"] == ["slices"] else " chips"
    how = "overlapped" if entry["overlapped"] else "not overlapped"
    size = entry["bytes"]
    amount = f"{_gib(size)} GiB" if size > 0.01 * _GIB else f"{size / 2**10:,.0f} KiB"
    took = f"{entry['seconds'] * 1e3:.2f} ms, " if "seconds" in entry else ""
    return f"{entry['count']} x {entry['kind']} over {over} ({entry['group']}{unit}): {amount}, {took}{how}"


def _of_whole(result: dict[str, Any]) -> str:
    """Returns the fraction of the memory that a run uses, if it does not use all of it."""
    limit, whole = result["memory_limit_bytes"], result["hbm_bytes"]
    return f", {limit / whole:.0%} of {_gib(whole)}" if limit < whole else ""


def _roofline(result: dict[str, Any]) -> list[str]:
    seconds = result["roofline_seconds"]
    return [
        f"products: {_ms(seconds['products'])} at the peak of {result['peak_flops'] / 1e12:,.0f} TFLOP/s",
        f"memory: {_ms(seconds['memory'])} for {result['hbm_traffic_bytes'] / 1e9:,.1f} GB at "
        f"{result['hbm_bandwidth'] / 1e12:.2f} TB/s, as if there were no cache",
        "the step time of GPUs is unknown; these are lower bounds without the traffic between GPUs",
        *_unknown_loops(result),
    ]


def _step(result: dict[str, Any]) -> list[str]:
    seconds = result["seconds"]
    texts = [
        f"{_ms(seconds['step'])} by the compiler's cycles: computation {_ms(seconds['compute'])}, Pallas "
        f"kernels {_ms(seconds['kernels'])}, operations without an estimate "
        f"{_ms(seconds['without_estimate'])}, waiting for other chips "
        f"{_ms(seconds['collectives_waited_for'])}",
        f"{_ms(seconds['roofline'])} at least (roofline): matrix units {_ms(seconds['roofline_matrix'])}, "
        f"HBM {_ms(seconds['roofline_hbm'])}, plus traffic",
    ]
    if result["operations_without_estimate"]:
        named = ", ".join(f"{count} {name}" for name, count in result["operations_without_estimate"].items())
        texts.append(f"operations without an estimate, counted by their roofline: {named}")
    return texts + _unknown_loops(result)


def _unknown_loops(result: dict[str, Any]) -> list[str]:
    loops = result["loops_of_unknown_length"]
    found = counted(loops, "loop of unknown length is", "loops of unknown length are")
    return [f"{found} counted once"] if loops else []


def _speed(result: dict[str, Any]) -> str:
    return (
        f"MFU {result['mfu']:.1%} (at most {result['mfu_roofline']:.1%}); "
        f"{result['sequences_per_second']:,.0f} sequences/s, {result['tokens_per_second']:,.0f} real tokens/s"
    )


def _run(result: dict[str, Any]) -> str:
    cost = "" if result["cost"] is None else f", cost {result['cost']:,.2f}"
    return (
        f"{counted(result['steps'], 'step')}: {result['hours']:,.2f} hours, {result['chip_hours']:,.1f} "
        f"chip-hours{cost}; without startup, evaluation and checkpoints"
    )


def _gib(size: float) -> str:
    return f"{size / _GIB:.2f}"


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.1f} ms"
