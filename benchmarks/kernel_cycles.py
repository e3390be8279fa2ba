"""The TPU compiler's own schedule of the Pallas kernels, for chips that need not be attached.

    python benchmarks/kernel_cycles.py [--chip=v6e] [--kernel=attention] [--rows=32] [--rate=0]

Compiles the forward and the backward kernel alone and prints, for each,

- cycles, as `bert-jax estimate` counts them: the bundles of a step of the grid, those in which all units wait
  among them, times the steps. They do not contain the transfers between HBM and vector memory, which go
  beside the computation;
- bundles of a step, without those that only wait, and the share of the slots of each unit that is used.

Nothing is measured. Needs libtpu (`pip install -e '.[estimate]'`); some seconds of a core.
"""

import argparse
import functools
import os
import re
import tempfile
from pathlib import Path

_TOPOLOGIES = {"v4": "v4:2x2x1", "v5e": "v5e:2x2", "v5p": "v5p:2x2x1", "v6e": "v6e:2x2"}
_LANES = 128
_UTILIZATION = "*final_hlo-static-per-bundle-utilization.txt"


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--chip", default="v6e", choices=_TOPOLOGIES)
    parser.add_argument("--kernel", default="attention", choices=("attention", "residual"))
    parser.add_argument("--rows", type=int, default=32)
    parser.add_argument("--length", type=int, default=512)
    parser.add_argument("--width", type=int, default=768, help="features of a token")
    parser.add_argument("--head_size", type=int, default=64, help="features of a head")
    parser.add_argument("--window", type=int, default=0, help="window of local attention")
    parser.add_argument("--rotary", action="store_true", help="attention turns queries and keys")
    parser.add_argument("--alibi", action="store_true", help="logits fall with the distance")
    parser.add_argument("--rate", type=float, default=0.0, help="dropout rate")
    parser.add_argument("--keep", type=Path, help="folder for the compiler's files; default: none is kept")
    return parser.parse_args()


def compile_both(args, device):
    """Returns the text of a program of the forward and the backward kernel."""
    import jax
    import jax.numpy as jnp
    from jax.sharding import SingleDeviceSharding

    from bert_jax.kernels import residual
    from bert_jax.kernels.tpu import attention

    def array(*shape, dtype=jnp.float32):
        return jax.ShapeDtypeStruct(shape, dtype, sharding=SingleDeviceSharding(device))

    states = array(args.rows, args.length, args.width, dtype=jnp.bfloat16)
    if args.kernel == "attention":
        how = dict(head_size=args.head_size, window=args.window, rate=args.rate)
        attend = functools.partial(attention.row_attention, **how)

        slopes = [2.0**-head for head in range(args.width // args.head_size)]

        def call(*inputs):
            return attend(*inputs[:6], inputs[6:], jnp.float32(slopes) if args.alibi else None)

        given = [states] * 3 + [array(args.rows, args.length, dtype=jnp.int32), array(3, args.width)]
        given.append(array(args.rows, 5, dtype=jnp.int32))
        given += [array(args.rows, args.length, _LANES)] * 2 if args.rotary else []
    else:
        key = jax.random.key(0) if args.rate else None
        call = functools.partial(residual.residual_norm, "pallas", epsilon=1e-12, rate=args.rate, key=key)
        given = [states, states] + [array(args.width)] * 3

    def kernel(gradient, *inputs):
        places = [place for place, x in enumerate(inputs) if jnp.issubdtype(x.dtype, jnp.floating)]

        def forward(*floats):
            values = dict(zip(places, floats, strict=True))
            return call(*(values.get(place, x) for place, x in enumerate(inputs)))

        out, pull = jax.vjp(forward, *(inputs[place] for place in places))
        return out, pull(gradient)

    with jax.set_mesh(jax.sharding.Mesh([device], ("chip",))):
        return jax.jit(kernel).lower(states, *given).compile().as_text()


def print_bundles(folder):
    names = None
    for path in sorted(folder.glob(_UTILIZATION)):
        name = re.sub(r"^\d+-|-\d+-final_hlo.*$", "", path.name)
        if not re.match(r"row_attention|residual_norm|jvp|transpose|pallas", name):
            continue  # bookkeeping around the kernels
        lines = path.read_text().splitlines()
        names, slots = lines[1].split(", "), [int(number) for number in lines[2].split()]
        bundles = [[int(number) for number in line.split()] for line in lines[4:] if line[:1].isdigit()]
        used = [
            f"{unit} {sum(column) / (size * len(bundles)):.0%}"
            for unit, size, column in zip(names, slots, zip(*bundles, strict=True), strict=True)
            if ":" not in unit
        ]
        print(f"{name}: {len(bundles):,} bundles; {', '.join(used)}")


def print_cycles(text, slices):
    from bert_jax.estimate import kernel_schedule
    from bert_jax.estimate.analysis import hlo, timing

    module = hlo.parse(text)
    found = kernel_schedule.cycles(module, slices, print)
    for visit in hlo.walk(module):
        cycles = found.get(timing.kernel_code(visit.instruction))
        if cycles is not None:
            busy = 1e6 * cycles / slices.chip.clock
            moving = 1e6 * timing.hbm_bytes(module, visit) / slices.chip.hbm_bandwidth
            print(
                f"{visit.instruction.name}: {cycles:,.0f} cycles, {busy:,.0f} us; its bytes at HBM's rate "
                f"{moving:,.0f} us"
            )


def main():
    args = parse_arguments()
    with tempfile.TemporaryDirectory() as temporary:
        folder = (args.keep or Path(temporary)).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        # libtpu reads it when it is loaded.
        os.environ["LIBTPU_INIT_ARGS"] = f"--xla_jf_dump_to={folder} --xla_jf_dump_llo_text=true"
        from bert_jax.estimate.chips import tpu_topology, tpus

        tpu_topology.prepare()
        slices = tpus.parse_topology(_TOPOLOGIES[args.chip])
        text = compile_both(args, tpu_topology.devices(slices)[0])
        print_bundles(folder)
        print_cycles(text, slices)


if __name__ == "__main__":
    main()
