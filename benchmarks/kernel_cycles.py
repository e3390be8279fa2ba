"""The TPU compiler's own schedule of the Pallas kernels, for chips that need not be attached.

    python benchmarks/kernel_cycles.py [--chip=v6e] [--kernel=attention] [--rows=32] [--rate=0]

`bert-jax estimate` has no cycles for Pallas kernels and counts their bytes and matrix products instead. This
script compiles the forward and the backward kernel alone and lets the compiler write what it knows of them:

- bundles: the instructions of one step of the grid, each with a slot for every unit of the core, and the
  share of the slots of each unit that is used (`--xla_jf_dump_to`, `--xla_jf_dump_llo_text`);
- cycles: the bundles with their waits, times the steps of the grid (`--xla_jf_dump_static_llo_profile_to`).
  libtpu 0.0.42.1 aborts when it analyzes the kernels of v5e, so that they are read for v6e alone.

The cycles do not contain the transfers between HBM and vector memory, which go beside the computation. Do not
set the last option for the program of a whole train step: after some minutes libtpu fills the memory of the
machine.

Nothing is measured. Needs libtpu (`pip install -e '.[estimate]'`); a minute of a core for each kernel.
"""

import argparse
import functools
import os
import re
import tempfile
from pathlib import Path

_TOPOLOGIES = {"v4": "v4:2x2x1", "v5e": "v5e:2x2", "v5p": "v5p:2x2x1", "v6e": "v6e:2x2"}
_HEAD_SIZE = 64
_UTILIZATION = "*final_hlo-static-per-bundle-utilization.txt"


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--chip", default="v6e", choices=_TOPOLOGIES)
    parser.add_argument("--kernel", default="attention", choices=("attention", "residual"))
    parser.add_argument("--rows", type=int, default=32)
    parser.add_argument("--length", type=int, default=512)
    parser.add_argument("--width", type=int, default=768, help="features of a token")
    parser.add_argument("--rate", type=float, default=0.0, help="dropout rate")
    parser.add_argument("--keep", type=Path, help="folder for the compiler's files; default: none is kept")
    return parser.parse_args()


def compile_both(args):
    """Compiles the forward and the backward kernel in one program."""
    import jax
    import jax.numpy as jnp
    from jax.experimental import topologies
    from jax.sharding import SingleDeviceSharding

    from bert_jax.kernels import pallas_attention, pallas_residual

    device = topologies.get_topology_desc(_TOPOLOGIES[args.chip], "tpu").devices[0]

    def array(*shape, dtype=jnp.float32):
        return jax.ShapeDtypeStruct(shape, dtype, sharding=SingleDeviceSharding(device))

    states = array(args.rows, args.length, args.width, dtype=jnp.bfloat16)
    parameters = array(3, args.width)
    if args.kernel == "attention":
        call = functools.partial(pallas_attention.row_attention, head_size=_HEAD_SIZE, rate=args.rate)
        given = [states] * 3 + [array(args.rows, args.length, dtype=jnp.int32), parameters]
        given.append(array(args.rows, 3, dtype=jnp.int32))
    else:
        call = functools.partial(pallas_residual._residual, 1e-12, args.rate, False)
        given = [states, states, parameters, array(args.rows, 1, 2, dtype=jnp.uint32)]

    def kernel(gradient, *inputs):
        places = [place for place, x in enumerate(inputs) if jnp.issubdtype(x.dtype, jnp.floating)]

        def forward(*floats):
            values = dict(zip(places, floats, strict=True))
            return call(*(values.get(place, x) for place, x in enumerate(inputs)))

        out, pull = jax.vjp(forward, *(inputs[place] for place in places))
        return out, pull(gradient)

    jax.jit(kernel).lower(states, *given).compile()


def print_bundles(folder):
    names = None
    for path in sorted(folder.glob(_UTILIZATION)):
        name = re.sub(r"^\d+-|-\d+-final_hlo.*$", "", path.name)
        if not re.match(r"row_attention|_residual|jvp|transpose|pallas", name):
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


def print_cycles(folder):
    for path in sorted(folder.glob("*_static_llo_profile.textproto")):
        text = path.read_text()
        cycles = int(re.search(r"estimated_cycles: (\d+)", text)[1])
        if re.match(r"row_attention|_residual|jvp|transpose|pallas", path.name):
            print(f"{path.name.removesuffix('_static_llo_profile.textproto')}: {cycles:,} cycles")


def main():
    args = parse_arguments()
    with tempfile.TemporaryDirectory() as temporary:
        folder = (args.keep or Path(temporary)).resolve()
        profile = folder / "profile"
        profile.mkdir(parents=True, exist_ok=True)
        options = [f"--xla_jf_dump_to={folder}", "--xla_jf_dump_llo_text=true"]
        if args.chip == "v6e":
            options.append(f"--xla_jf_dump_static_llo_profile_to={profile}")
        # libtpu reads it when it is loaded.
        os.environ["LIBTPU_INIT_ARGS"] = " ".join(options)
        os.environ["JAX_PLATFORMS"] = "cpu"
        compile_both(args)
        print_bundles(folder)
        print_cycles(profile)


if __name__ == "__main__":
    main()
