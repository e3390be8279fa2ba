"""Computes the complete estimate of a train step, as a dict that can be written as JSON."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from bert_jax.estimate import collectives, hlo, pallas_schedule, timing
from bert_jax.estimate.gpus import Hosts
from bert_jax.estimate.program import Compiled, TrainStep
from bert_jax.estimate.timing import ATTENTION_BACKWARD, ATTENTION_FORWARD
from bert_jax.estimate.tpus import Slices
from bert_jax.io.wording import counted
from bert_jax.kernels.attention import kernel_keys
from bert_jax.models.parameters import layer_slices
from bert_jax.parallel import sharding
from bert_jax.parallel.device_memory import DoesNotFit
from bert_jax.training import flops

_GIB = 2.0**30
# The largest batch is accurate to one eighth: further compilations would be for batches that hardly differ.
_PRECISION = 8
_LARGEST = 2**16


def estimate(
    step: TrainStep,
    slices: Slices | Hosts,
    *,
    find_largest: bool = False,
    price: float | None = None,
    log: Callable[[str], None] = lambda line: None,
) -> dict[str, Any]:
    """Compiles the step for the batch size of its config and returns the estimate.

    Args:
        step: the train step.
        slices: the hardware.
        find_largest: whether to find the largest batch that fits, by compiling several; this is always done
            if the config's batch does not fit.
        price: price of a TPU chip per hour.
        log: called with one line before each compilation and with its result.

    Returns:
        The estimate, see docs/estimate.md. It has no times and no traffic if the batch does not fit, and for
        GPUs no step time and nothing that depends on it.
    """
    tried: dict[int, Compiled | DoesNotFit] = {}

    def compile_(parts: int) -> Compiled | DoesNotFit:
        if parts not in tried:
            batch_size = parts * step.unit
            log(f"compiling for {counted(batch_size, 'row')}, {_rows_per_chip(step, batch_size)} per chip")
            result = tried[parts] = step.compile(batch_size)
            if isinstance(result, Compiled):
                memory = f"{result.memory['total'] / _GIB:.2f} GiB per chip"
                log(f"fits: {memory}, compiled in {result.seconds:.0f} s")
            else:
                log(f"does not fit: {result.needed / _GIB:.2f} GiB per chip")
        return tried[parts]

    batch_size = step.config.batch_size
    result = _describe(step, slices)
    program = compile_(_parts(step, batch_size))
    if isinstance(program, Compiled):
        result |= {"fits": True, "memory_bytes": program.memory, "compile_seconds": program.seconds}
        if isinstance(slices, Hosts):
            result |= gpu_figures(program.text, step, slices)
        else:
            result |= figures(program.text, step, slices, price, log)
    else:
        result |= {"fits": False, "memory_bytes": {"total": program.needed, "available": program.available}}
    if find_largest or not result["fits"]:
        parts = largest_fitting(lambda parts: isinstance(compile_(parts), Compiled), _parts(step, batch_size))
        rows = parts * step.unit
        result["largest_batch"] = {"batch_size": rows, "rows_per_chip": _rows_per_chip(step, rows)}
    return result


def _parts(step: TrainStep, batch_size: int) -> int:
    sharding.check_batch_size(batch_size, step.mesh, step.config.accumulate_steps)
    return batch_size // step.unit


def _rows_per_chip(step: TrainStep, batch_size: int) -> int:
    """Returns the rows per chip; tensor parallel chips count all the rows that they share."""
    return batch_size // (step.mesh.shape["data"] * step.mesh.shape["fsdp"])


def _describe(step: TrainStep, slices: Slices | Hosts) -> dict[str, Any]:
    model, rows = step.model, step.rows
    fields = ("num_hidden_layers", "hidden_size", "num_attention_heads", "dtype", "remat", "scan_unroll",
              "hidden_dropout_prob", "attention_probs_dropout_prob", "vocab_size")  # fmt: skip
    return {
        "kind": "estimate: compiled ahead of time, nothing is measured",
        "topology": slices.description,
        "mesh": dict(step.mesh.shape),
        "model": {name: model.to_dict()[name] for name in fields} | {"attention": _attention(step)},
        "batch_size": step.config.batch_size,
        "rows_per_chip": _rows_per_chip(step, step.config.batch_size),
        "accumulate_steps": step.config.accumulate_steps,
        "steps": step.config.steps,
        "rows": {
            "length": rows.length,
            "sequences": rows.sequences,
            "fill": rows.fill,
            "predictions": step.predictions,
            "source": rows.source,
        },
        "hbm_bytes": slices.chip.hbm_bytes,
        "memory_limit_bytes": step.memory_limit or slices.chip.hbm_bytes,
    }


def _attention(step: TrainStep) -> str:
    """Returns the implementations of attention, in global and in local layers."""
    windows = {each.window for each in layer_slices(step.model)}
    names = [
        step.attention_of(step.model, window) + " in local layers" * bool(window and len(windows) > 1)
        for window in sorted(windows)
    ]
    return ", ".join(names)


def figures(
    text: str,
    step: TrainStep,
    slices: Slices,
    price: float | None,
    log: Callable[[str], None] = lambda line: None,
) -> dict[str, Any]:
    """Returns the times, FLOPs and traffic that follow from the text of a compiled program.

    Args:
        text: the program.
        step: the train step.
        slices: the hardware it was compiled for.
        price: price of a chip per hour.
        log: called with one line if the schedules of Pallas kernels cannot be read.
    """
    chip, config, mesh_shape = slices.chip, step.config, dict(step.mesh.shape)
    module = hlo.parse(text)
    positions = [_position(device) for device in step.mesh.devices.flat]
    traffic = collectives.find(module, mesh_shape, chip, positions)
    schedules = pallas_schedule.cycles(module, slices, log)
    compute = timing.compute(module, chip, attention_flops(step), step.model.head_dim, schedules)
    waited = sum(one.total_seconds for one in traffic if not one.overlapped)
    hidden = sum(one.total_seconds for one in traffic if one.overlapped)
    by_compiler = max(compute.seconds, hidden) + waited
    by_roofline = max(compute.roofline(chip), hidden) + waited
    model_flops = step.row_flops * config.batch_size
    # The time of a step is taken to grow with its rows.
    steps = config.batch_sizes.total_before(config.steps) / config.batch_size
    hours = steps * by_compiler / 3600
    rows_per_second = config.batch_size / by_compiler
    return {
        "seconds": {
            "step": by_compiler,
            "compute": compute.estimated_seconds,
            "kernels": compute.kernel_seconds,
            "without_estimate": compute.added_seconds,
            "collectives_waited_for": waited,
            "collectives_overlapped": hidden,
            "roofline": by_roofline,
            "roofline_matrix": compute.matrix_flops / chip.peak_flops,
            "roofline_hbm": compute.hbm_bytes / chip.hbm_bandwidth,
        },
        "kernels": compute.kernels,
        "operations_without_estimate": compute.added,
        "loops_of_unknown_length": compute.unknown_loops,
        "flops": {"model": model_flops, "matrix_per_chip": compute.matrix_flops},
        "hbm_traffic_bytes": compute.hbm_bytes,
        "mfu": model_flops / (by_compiler * chip.peak_flops * slices.chips),
        "mfu_roofline": model_flops / (by_roofline * chip.peak_flops * slices.chips),
        "sequences_per_second": rows_per_second * step.rows.sequences,
        "tokens_per_second": rows_per_second * step.rows.length * step.rows.fill,
        "hours": hours,
        "chip_hours": hours * slices.chips,
        "cost": None if price is None else hours * slices.chips * price,
        "collectives": _sum_up(traffic),
    }


def gpu_figures(text: str, step: TrainStep, hosts: Hosts) -> dict[str, Any]:
    """Returns the FLOPs and traffic in the text of a program for GPUs, and lower bounds of its time.

    There is no step time: the compiler gives no estimates for GPUs, and the kernels of products are chosen by
    timing them on the device.
    """
    chip, module = hosts.chip, hlo.parse(text)
    positions = [(0, (number,)) for number in range(step.mesh.size)]
    traffic = _sum_up(collectives.find(module, dict(step.mesh.shape), None, positions))
    device_peaks = flops.find_peak(chip.kind)
    assert device_peaks is not None, chip.kind
    peak = getattr(device_peaks, step.model.execution.dtype)
    matrix_flops, moved = timing.matrix_flops(module), timing.moved_bytes(module)
    return {
        "roofline_seconds": {"products": matrix_flops / peak, "memory": moved / chip.hbm_bandwidth},
        "peak_flops": peak,
        "hbm_bandwidth": chip.hbm_bandwidth,
        "loops_of_unknown_length": timing.unknown_loops(module),
        "flops": {"model": step.row_flops * step.config.batch_size, "matrix_per_chip": matrix_flops},
        "hbm_traffic_bytes": moved,
        "collectives": [
            {name: value for name, value in entry.items() if name != "seconds"}
            for entry in sorted(traffic, key=lambda entry: -entry["bytes"])
        ],
    }


def _position(device: Any) -> tuple[int, tuple[int, ...]]:
    """Returns (slice, coordinates on its torus); devices of other platforms are placed along a line."""
    return getattr(device, "slice_index", None) or 0, tuple(getattr(device, "coords", (device.id,)))


def attention_flops(step: TrainStep) -> float:
    """Returns the FLOPs per step of the attention kernels on one chip, over the layers that use kernels."""
    length, rows = step.rows.length, _rows_per_chip(step, step.config.batch_size)
    total = 0.0
    for model in step.encoders:
        forwards = 1 if model.execution.remat == "none" else 2
        products = ATTENTION_FORWARD * forwards + ATTENTION_BACKWARD
        slices = layer_slices(model)
        chosen = {each.window: step.attention_of(model, each.window) for each in slices}
        keys = sum(
            kernel_keys(chosen[each.window], length, each.window) * len(each.numbers)
            for each in slices
            if chosen[each.window] != "xla"
        )
        total += 2.0 * products * rows * model.hidden_size / step.heads_split(model) * length * keys
    return total


def _sum_up(traffic: list[collectives.Collective]) -> list[dict[str, Any]]:
    """Returns one entry for each kind of collective along the same axes, longest total time first."""
    sums: dict[tuple, dict[str, Any]] = {}
    for one in traffic:
        entry = sums.setdefault(
            (one.kind, one.axes, one.group, one.overlapped),
            {
                "kind": one.kind,
                "axes": list(one.axes),
                "group": one.group,
                "overlapped": one.overlapped,
                "count": 0,
                "bytes": 0.0,
                "seconds": 0.0,
            },
        )
        entry["count"] += one.times
        entry["bytes"] += one.total_bytes
        entry["seconds"] += one.total_seconds
    return sorted(sums.values(), key=lambda entry: -entry["seconds"])


def largest_fitting(fits: Callable[[int], bool], start: int) -> int:
    """Returns the largest n found for which `fits(n)`, to within an eighth; 0 if not even 1 fits.

    It doubles n from `start` until it does not fit, or halves it until it does, and then bisects.

    Args:
        fits: true up to some number and false above it; called once per number.
        start: first number to try, at least 1.
    """
    fits = functools.cache(fits)
    low = high = start
    if fits(start):
        while fits(high) and high < _LARGEST:
            low, high = high, 2 * high
        if fits(high):
            return high
    else:
        while low > 1 and not fits(low):
            low, high = low // 2, low
        if not fits(low):
            return 0
    while high - low > max(1, low // _PRECISION):
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low
