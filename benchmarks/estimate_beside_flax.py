"""Estimates a pre-training step on TPUs that are not there, beside transformers' Flax BERT-Base, in one run.

    python benchmarks/estimate_beside_flax.py --peer=hf_flax_pretrain.py --peer_python=PYTHON \
        --topology=v5e:4x4 --rows=32 --length=512 --config=configs/pretrain/base_v5e.py

Both programs are compiled for the same slice by the same compiler and read by the same code
(`bert_jax.estimate`), the FLOPs of the model being those of its formula for both. PYTHON has jax, flax,
libtpu and transformers before 5. Prints a markdown table.
"""

import argparse
import json
import os
import runpy
import subprocess
import sys
import tempfile
import time
from pathlib import Path

# Runs the peer's script as it is, but for writing down the program that it is about to read.
_PEER = """
import runpy, sys
from pathlib import Path
script, target, *arguments = sys.argv[1:]
sys.path.insert(0, str(Path(script).parent))
import tpu_cycles
count = tpu_cycles.total_cycles
def total_cycles(text):
    Path(target).write_text(text)
    return count(text)
tpu_cycles.total_cycles = total_cycles
sys.argv = [script, *arguments]
runpy.run_path(script, run_name="__main__")
"""


def peer_program(args: argparse.Namespace) -> tuple[str, float]:
    """(the compiled program, seconds)."""
    with tempfile.TemporaryDirectory() as directory:
        target = Path(directory, "program.hlo")
        command = [args.peer_python, "-c", _PEER, args.peer, str(target)]
        command += ["tpu", args.topology, str(args.rows), str(args.length)]
        began = time.monotonic()
        printed = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
        print(printed.strip().splitlines()[-1], file=sys.stderr)
        return target.read_text(), time.monotonic() - began


def our_step(args: argparse.Namespace):
    from bert_jax.estimate import program
    from bert_jax.estimate.chips import tpu_topology, tpus
    from bert_jax.settings.typed import pretrain_config

    tpu_topology.prepare()
    slices = tpus.parse_topology(args.topology, 1)
    config = runpy.run_path(args.config)["get_config"]()
    config.batch_size = args.rows * slices.chips
    config = pretrain_config.pretraining(config)
    rows = program.synthetic_rows(config, args.length)
    return program.TrainStep(config, rows, tpu_topology.devices(slices)), slices


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--peer", required=True)
    parser.add_argument("--peer_python", default=sys.executable)
    parser.add_argument("--topology", default="v5e:4x4")
    parser.add_argument("--rows", type=int, default=32, help="a chip")
    parser.add_argument("--length", type=int, default=512)
    parser.add_argument("--config", default="configs/pretrain/base_v5e.py")
    parser.add_argument("--keep", help="a folder for the programs; one that is there is not compiled again")
    args = parser.parse_args()
    step, slices = our_step(args)
    from bert_jax.estimate import measure
    from bert_jax.parallel import device_memory

    def ours():
        compiled = step.compile(step.config.batch_size)
        if isinstance(compiled, device_memory.DoesNotFit):
            sys.exit(f"does not fit: {compiled}")
        return compiled.text, compiled.seconds

    sides = {}
    for name, make in (("transformers-flax", lambda: peer_program(args)), ("bert_jax", ours)):
        kept = args.keep and Path(args.keep, f"{name}-{args.topology}-{args.rows}x{args.length}.hlo")
        if kept and kept.exists():
            text = kept.read_text()
        else:
            text, seconds = make()
            print(f"{name}: compiled in {seconds:.0f} s", file=sys.stderr)
            if kept:
                os.makedirs(args.keep, exist_ok=True)
                kept.write_text(text)
        sides[name] = measure.figures(text, step, slices, None)
        print(name, json.dumps(sides[name]["operations_without_estimate"]), file=sys.stderr)
    print(
        "| | computation by cycles | Pallas kernels | without an estimate | waiting for other chips | step "
        "| MFU | MFU without waiting |"
    )
    print("|---|---|---|---|---|---|---|---|")
    for name, found in sides.items():
        seconds = found["seconds"]
        alone = seconds["compute"] + seconds["kernels"] + seconds["without_estimate"]
        columns = ("compute", "kernels", "without_estimate", "collectives_waited_for", "step")
        shown = [seconds[key] for key in columns]
        mfus = found["mfu"], found["mfu"] * seconds["step"] / alone
        cells = [f"{1e3 * value:.1f} ms" for value in shown] + [f"{mfu:.1%}" for mfu in mfus]
        print("| " + " | ".join([name, *cells]) + " |")


if __name__ == "__main__":
    main()
