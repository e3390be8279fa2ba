"""Computes the complete estimate of a train step, as a dict that can be written as JSON, and as text."""

from collections.abc import Callable
from typing import Any

from bert_jax.estimate import costs, hlo
from bert_jax.estimate.hardware import Hosts, Slices
from bert_jax.estimate.program import Compiled, TrainStep
from bert_jax.io.wording import counted
from bert_jax.training import flops


def estimate(step: TrainStep, hardware: Slices | Hosts, price: float | None = None) -> dict[str, Any]:
    """Compiles the step for the batch size of its config and returns the estimate; see docs/costs.md.

    It has no times and no traffic if the batch does not fit or the hardware has GPUs. The price is of a TPU
    chip per hour.
    """
    config, model, rows = step.config, step.model, step.rows
    program = step.compile(config.batch_size)
    attention = sorted({choice.implementation for choice in step.attention})
    fields = ("num_hidden_layers", "hidden_size", "num_attention_heads", "dtype", "remat", "scan_unroll",
              "hidden_dropout_prob", "attention_probs_dropout_prob", "vocab_size")  # fmt: skip
    result = {
        "kind": "estimate: compiled ahead of time, nothing is measured",
        "topology": hardware.description,
        "mesh": dict(step.mesh.shape),
        "model": {name: model.to_dict()[name] for name in fields} | {"attention": ", ".join(attention)},
        "batch_size": config.batch_size,
        "rows_per_chip": step.rows_per_chip(config.batch_size),
        "accumulate_steps": config.accumulate_steps,
        "steps": config.steps,
        "rows": {
            "length": rows.length,
            "sequences": rows.sequences,
            "fill": rows.fill,
            "predictions": step.predictions,
            "source": rows.source,
        },
        "hbm_bytes": hardware.chip.hbm_bytes,
        "memory_limit_bytes": step.memory_limit or hardware.chip.hbm_bytes,
        "versions": hardware.versions(),
    }
    if isinstance(program, Compiled):
        result |= {"fits": True, "memory_bytes": program.memory}
        if isinstance(hardware, Hosts):
            result |= _gpu_figures(program, step, hardware)
        else:
            result |= _tpu_figures(program, step, hardware, price)
    else:
        result |= {"fits": False, "memory_bytes": {"total": program.needed, "available": program.available}}
        fits = lambda units: isinstance(step.compile(units * step.unit), Compiled)  # noqa: E731
        largest = largest_fitting(fits, config.batch_size // step.unit) * step.unit
        result["largest_batch"] = {"batch_size": largest, "rows_per_chip": step.rows_per_chip(largest)}
    return result


def _tpu_figures(program: Compiled, step: TrainStep, slices: Slices, price: float | None) -> dict[str, Any]:
    """Returns the times, FLOPs and traffic that follow from a compiled program."""
    chip, config = slices.chip, step.config
    module = hlo.parse(program.text)
    # Devices of other platforms, in tests, are placed along a line.
    positions = [
        (getattr(device, "slice_index", None) or 0, tuple(getattr(device, "coords", (device.id,))))
        for device in step.mesh.devices.flat
    ]
    traffic = costs.collectives(module, dict(step.mesh.shape), chip, positions)
    cycles = costs.kernel_cycles(module, chip, program.bundles)
    compute = costs.compute(module, chip, cycles)
    waited = sum(one.times * one.seconds for one in traffic if not one.overlapped)
    hidden = sum(one.times * one.seconds for one in traffic if one.overlapped)
    seconds = max(sum(compute.seconds.values()), hidden) + waited
    model_flops = step.row_flops * config.batch_size
    # The time of a step is assumed to be proportional to its rows.
    steps = config.batch_sizes.total_before(config.steps) / config.batch_size
    hours = steps * seconds / 3600
    rows_per_second = config.batch_size / seconds
    return {
        "seconds": {
            "step": seconds,
            **compute.seconds,
            "collectives_waited_for": waited,
            "collectives_overlapped": hidden,
        },
        "kernels": compute.kernels,
        "operations_without_estimate": compute.added,
        "loops_of_unknown_length": costs.unknown_loops(module),
        "flops": {"model": model_flops},
        "mfu": model_flops / (seconds * chip.peak_flops * slices.size),
        "sequences_per_second": rows_per_second * step.rows.sequences,
        "tokens_per_second": rows_per_second * step.rows.length * step.rows.fill,
        "hours": hours,
        "chip_hours": hours * slices.chips,
        "cost": None if price is None else hours * slices.chips * price,
        "collectives": _sum_up(traffic),
    } | ({"assumed": chip.assumed} if chip.assumed else {})


def _gpu_figures(program: Compiled, step: TrainStep, hosts: Hosts) -> dict[str, Any]:
    """Returns the FLOPs and memory traffic of a program for GPUs, and lower bounds of its time.

    There is no step time, because the compiler gives no estimates for GPUs and chooses the kernels of matmuls
    by timing them on the device.
    """
    chip, module = hosts.chip, hlo.parse(program.text)
    device_peaks = flops.find_peak(chip.kind)
    assert device_peaks is not None, chip.kind
    peak = getattr(device_peaks, step.model.dtype)
    matrix_flops, moved = costs.matrix_flops(module), costs.moved_bytes(module)
    return {
        "roofline_seconds": {"products": matrix_flops / peak, "memory": moved / chip.hbm_bandwidth},
        "peak_flops": peak,
        "hbm_bandwidth": chip.hbm_bandwidth,
        "loops_of_unknown_length": costs.unknown_loops(module),
        "flops": {"model": step.row_flops * step.config.batch_size, "matrix_per_chip": matrix_flops},
        "hbm_traffic_bytes": moved,
    }


def _sum_up(traffic: list[costs.Collective]) -> list[dict[str, Any]]:
    """Returns one entry for each kind of collective along the same axes, longest total time first."""
    sums: dict[tuple, dict[str, Any]] = {}
    for one in traffic:
        key = {"kind": one.kind, "axes": one.axes, "group": one.group, "overlapped": one.overlapped}
        new = key | {"axes": list(one.axes), "count": 0, "bytes": 0.0, "seconds": 0.0}
        entry = sums.setdefault(tuple(key.values()), new)
        entry["count"] += one.times
        entry["bytes"] += one.times * one.payload
        entry["seconds"] += one.times * one.seconds
    return sorted(sums.values(), key=lambda entry: -entry["seconds"])


def largest_fitting(fits: Callable[[int], bool], too_many: int) -> int:
    """Returns the largest n below `too_many` that fits, to within an eighth; 0 if not even 1 fits.

    `fits` is true up to some number and false above it.
    """
    low, high = 0, too_many
    while high - low > max(1, low // 8):  # Further compilations would be for batches that hardly differ.
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def lines(result: dict[str, Any]) -> list[str]:
    """Returns the lines of text for a result of `estimate`."""
    model, topology, rows = result["model"], result["topology"], result["rows"]
    on_gpus = "hosts" in topology
    chip, group = ("GPU", "host") if on_gpus else ("chip", "slice")
    unit, devices = ("device", f", {topology['devices']} devices") if "devices" in topology else ("chip", "")
    mesh = " ".join(f"{axis}={size}" for axis, size in result["mesh"].items())
    versions = ", ".join(f"{name} {version}" for name, version in result["versions"].items())
    texts = [
        f"estimate    nothing here is measured: compiled for devices that are not attached ({versions})",
        f"model       {counted(model['num_hidden_layers'], 'layer')} of {model['hidden_size']}, "
        f"{model['dtype']}, attention {model['attention']}, remat {model['remat']}",
        f"hardware    {topology['name']}, {counted(topology[f'{group}s'], group)}, "
        f"{counted(topology['chips'], chip)}{devices}; mesh {mesh}",
        f"batch       {counted(result['batch_size'], 'row')} of {rows['length']}, {result['rows_per_chip']} "
        f"per {unit}, in {counted(result['accumulate_steps'], 'microbatch', 'microbatches')}; "
        f"{rows['sequences']:.2f} sequences per row, {rows['fill']:.1%} filled, "
        f"{rows['predictions']} predicted ({rows['source']})",
        *_memory(result, unit),
    ]
    if result["fits"]:
        texts += _bounds(result) if on_gpus else _times(result, unit)
        if loops := result["loops_of_unknown_length"]:
            texts.append(f"step        loops of unknown length, which are counted once: {loops}")
    return texts


def _memory(result: dict[str, Any], unit: str) -> list[str]:
    memory, available, whole = (result[f"{name}_bytes"] for name in ("memory", "memory_limit", "hbm"))
    of_whole = f", {available / whole:.0%} of {_gib(whole)}" if available < whole else ""
    if result["fits"]:
        parts = ", ".join(f"{name} {_gib(size)}" for name, size in memory.items() if name != "total")
        fits = f"fits: {_gib(memory['total'])} of {_gib(available)} GiB per {unit}{of_whole}"
        return [f"memory      {fits}", f"memory      {parts}"]
    largest = result["largest_batch"]
    return [
        f"memory      DOES NOT FIT: needs {_gib(memory['total'])} GiB per {unit}; available: "
        f"{_gib(memory['available'])}{of_whole}",
        f"memory      the largest batch that fits, to within an eighth: "
        f"{counted(largest['batch_size'], 'row')}, {largest['rows_per_chip']} per {unit}"
        if largest["batch_size"]
        else f"memory      not even one row per {unit} fits: split the model, with --config.mesh.fsdp or "
        "--config.mesh.tensor, or set --config.model.remat=full",
    ]


def _bounds(result: dict[str, Any]) -> list[str]:
    seconds, flops = result["roofline_seconds"], result["flops"]
    return [
        f"FLOPs       model: {flops['model'] / 1e12:,.2f} TFLOP per step; products of a GPU: "
        f"{flops['matrix_per_chip'] / 1e12:.3f}",
        f"roofline    products: {_ms(seconds['products'])} at the peak of "
        f"{result['peak_flops'] / 1e12:,.0f} TFLOP/s",
        f"roofline    memory: {_ms(seconds['memory'])} for {result['hbm_traffic_bytes'] / 1e9:,.1f} GB at "
        f"{result['hbm_bandwidth'] / 1e12:.2f} TB/s, as if there were no cache",
        "roofline    the step time is unknown; these are lower bounds without the traffic between GPUs",
    ]


def _times(result: dict[str, Any], unit: str) -> list[str]:
    seconds = result["seconds"]
    added = ", ".join(f"{count} {name}" for name, count in result["operations_without_estimate"].items())
    cost = "" if result["cost"] is None else f", cost {result['cost']:,.2f}"
    traffic = [
        f"traffic     {entry['count']} x {entry['kind']} over {', '.join(entry['axes']) or 'unknown axes'} "
        f"({entry['group']}): {entry['bytes'] / 2**20:,.2f} MiB, {_ms(entry['seconds'])}"
        f"{', overlapped' if entry['overlapped'] else ''}"
        for entry in result["collectives"]
    ]
    return [
        *(traffic or ["traffic     none"]),
        f"step        {_ms(seconds['step'])} by the compiler's cycles: computation "
        f"{_ms(seconds['compute'])}, Pallas kernels {_ms(seconds['kernels'])}, operations without an "
        f"estimate {_ms(seconds['without_estimate'])}, waiting for other {unit}s "
        f"{_ms(seconds['collectives_waited_for'])}",
        *([f"step        operations without an estimate, counted by their bytes: {added}"] if added else []),
        *([f"step        assumed: {result['assumed']}"] if "assumed" in result else []),
        f"speed       MFU {result['mfu']:.1%} of {result['flops']['model'] / 1e12:,.2f} TFLOP per step; "
        f"{result['sequences_per_second']:,.0f} sequences/s, "
        f"{result['tokens_per_second']:,.0f} real tokens/s",
        f"run         {counted(result['steps'], 'step')}: {result['hours']:,.2f} hours, "
        f"{result['chip_hours']:,.1f} chip-hours{cost}; without startup, evaluation and checkpoints",
    ]


def _gib(size: float) -> str:
    return f"{size / 2**30:.2f}"


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.2f} ms"
