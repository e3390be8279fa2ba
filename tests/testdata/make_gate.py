"""Records in tests/testdata/gate what the code computes, so that a change of it shows; or compares with it.

    python tests/testdata/make_gate.py --check                  what differs from what is recorded
    python tests/testdata/make_gate.py [--only=programs,...]    records anew, after an intended change
    python tests/testdata/make_gate.py --only=programs:pretrain/mini,losses:tags    one group of a section

Describe each intended change in one line of tests/testdata/gate/CHANGES.md. The work directories in gate/runs
stand for those that users have, and are never written anew. Where a resumed run is meant to end in other
numbers, --only=ends records the new end of the old directory.
"""

import argparse
import shutil
import sys
import tempfile
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(TESTS), str(TESTS.parent)]

import conftest  # noqa: E402, F401  (the devices and flags of the tests, before jax is imported)
from support import lowering, recorded  # noqa: E402
from support.gate import inputs, losses, workdirs  # noqa: E402

SECTIONS = ("programs", "parameters", "records", "losses", "conversions", "predictions", "ends")


def chosen(groups, only):
    """The groups of a section, or the one of that name."""
    return {only: groups[only]} if only else groups


def compute(section, folder, only):
    """What `recorded.write` takes of a section, or of one group of programs, parameters, losses or ends."""
    if section in ("programs", "parameters"):
        files = lowering.write_files(folder)
        if section == "parameters":
            return chosen(lowering.parameters(files), only)
        found = {}
        for name, group in chosen(lowering.programs(files), only).items():
            print(f"lowering {name}", flush=True)
            found |= group()
        return found | {"jax": recorded.jax_version()}
    if section == "records":
        inputs.write_corpus(folder)
        inputs.write_records(folder)
        return inputs.record_digests(folder)
    if section == "losses":
        inputs.write_corpus(folder)
        inputs.write_records(folder)
        inputs.write_tables(folder)
        curves = {name: losses.curve(name, folder) for name in chosen(losses.CURVES, only)}
        return {"machine": recorded.machine(), "curves": curves}
    if section == "conversions":
        workdirs.copy_runs(folder)
        return workdirs.conversions(folder, "pretraining")
    workdirs.copy_runs(folder)
    if section == "predictions":
        return workdirs.predictions(folder)
    return {name: workdirs.end(name, folder) for name in chosen(workdirs.RUNS, only)}


def merged(section, found):
    """What is recorded of a section, with one of its groups as it is found."""
    expected = recorded.read(section)
    if section != "losses":
        return expected | found
    assert expected["machine"] == found["machine"], "all losses have to be recorded on one machine"
    return expected | {"curves": expected["curves"] | found["curves"]}


def check(section, folder, only):
    """One line for each difference."""
    found = compute(section, folder, only)
    if section == "ends":
        return workdirs.check_ends(found)
    expected = recorded.read(section)
    if section == "losses":
        return losses.check_curves(expected | {"curves": chosen(expected["curves"], only)}, found)
    if only:
        expected = {name: expected[name] for name in found if name in expected}
    if section == "predictions":
        return workdirs.check_predictions(expected, found)
    return recorded.differences(section, expected, found)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="compare, and write nothing")
    parser.add_argument("--only", default=",".join(SECTIONS), help="sections, or SECTION:GROUP, with commas")
    arguments = parser.parse_args()
    failed = False
    with tempfile.TemporaryDirectory() as scratch:
        for part in arguments.only.split(","):
            section, _, only = part.partition(":")
            if section not in SECTIONS or (only and section in ("records", "conversions", "predictions")):
                parser.error(f"--only={part}: expected some of {', '.join(SECTIONS)}, or one group of it")
            folder = Path(scratch) / section
            folder.mkdir()
            if arguments.check:
                differences = check(section, folder, only)
                failed = failed or bool(differences)
                print(differences or f"{part}: as recorded")
            elif section == "ends":
                workdirs.write_ends(compute(section, folder, only))
            else:
                found = compute(section, folder, only)
                recorded.write(section, merged(section, found) if only else found)
            shutil.rmtree(folder)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
