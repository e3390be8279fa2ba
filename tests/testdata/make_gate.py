"""Records in tests/testdata/gate what the code computes, so that a change of it shows; or compares with it.

    python tests/testdata/make_gate.py --check                  what differs from what is recorded
    python tests/testdata/make_gate.py [--only=programs,...]    records anew, after an intended change
    python tests/testdata/make_gate.py --new_runs               also writes new work directories to resume

Describe each intended change in one line of tests/testdata/gate/CHANGES.md. The work directories in gate/runs
stand for those that users have: they are not written anew because the code changed. Where a resumed run is
meant to end in other numbers, --only=ends records the new end of the old directory.
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


def compute(section, folder):
    """What `recorded.write` takes of a section."""
    if section in ("programs", "parameters"):
        files = lowering.write_files(folder)
        if section == "parameters":
            return lowering.parameters(files)
        found = {}
        for name, group in lowering.programs(files).items():
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
        curves = {name: losses.curve(name, folder) for name in losses.CURVES}
        return {"machine": recorded.machine(), "curves": curves}
    if section == "conversions":
        workdirs.copy_runs(folder)
        return workdirs.conversions(folder, "pretraining")
    workdirs.copy_runs(folder)
    if section == "predictions":
        return workdirs.predictions(folder)
    return {name: workdirs.end(name, folder) for name in workdirs.RUNS}


def check(section, folder):
    """One line for each difference."""
    found = compute(section, folder)
    if section == "ends":
        return workdirs.check_ends(found)
    expected = recorded.read(section)
    if section == "losses":
        return losses.check_curves(expected, found)
    if section == "predictions":
        return workdirs.check_predictions(expected, found)
    return recorded.differences(section, expected, found)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="compare, and write nothing")
    parser.add_argument("--only", default=",".join(SECTIONS), help="sections, with commas between")
    parser.add_argument("--new_runs", action="store_true", help="write new work directories first")
    arguments = parser.parse_args()
    failed = False
    with tempfile.TemporaryDirectory() as scratch:
        if arguments.new_runs and not arguments.check:
            workdirs.write_runs(Path(scratch) / "runs")
        for section in arguments.only.split(","):
            if section not in SECTIONS:
                parser.error(f"--only={section}: expected some of {', '.join(SECTIONS)}")
            folder = Path(scratch) / section
            folder.mkdir()
            if arguments.check:
                differences = check(section, folder)
                failed = failed or bool(differences)
                print(differences or f"{section}: as recorded")
            elif section == "ends":
                workdirs.write_ends(compute(section, folder))
            else:
                recorded.write(section, compute(section, folder))
            shutil.rmtree(folder)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
