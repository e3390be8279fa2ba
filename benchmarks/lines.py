"""Measures the size of the project, so that it cannot grow unnoticed.

    python benchmarks/lines.py             product lines, files and raised user errors by room, and the totals
    python benchmarks/lines.py --check     compares the totals with the ceilings in CONTRIBUTING.md
    python benchmarks/lines.py --run       also counts the files that 12 steps of pretrain/tiny execute

A ceiling is a line `| name | number |` in the table of CONTRIBUTING.md. Comments and docstrings count.
"""

import argparse
import collections
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

_CEILING = re.compile(r"^\| ([a-z][^|]*[a-z`/]) \| ([\d,]+) \|$", re.MULTILINE)

# Runs a command and writes the product files with functions that it calls, except while a module is imported.
_EXECUTED = """
import json, sys
from pathlib import Path
seen, importing = set(), 0

def profile(frame, event, _):
    global importing
    if frame.f_code.co_name == "<module>":
        importing += {{"call": 1, "return": -1}}.get(event, 0)
    elif event == "call" and not importing and frame.f_code.co_filename.startswith({folders!r}):
        seen.add(frame.f_code.co_filename)

import threading
threading.setprofile(profile)
sys.setprofile(profile)
from bert_jax import cli
code = cli.main({argv!r})
sys.setprofile(None)
Path({output!r}).write_text(json.dumps(sorted(seen)))
sys.exit(code)
"""


def room_of(path: str) -> str:
    """The package of a product file, such as `bert_jax/models`; `bert_jax` for its top-level files."""
    folders = path.split("/")
    return "/".join(folders[:2]) if folders[0] == "bert_jax" and len(folders) > 2 else folders[0]


def tracked_files() -> list[str]:
    listed = subprocess.run(["git", "ls-files", "*.py"], cwd=ROOT, capture_output=True, text=True, check=True)
    return [path for path in listed.stdout.splitlines() if (ROOT / path).exists()]


def measure() -> tuple[dict[str, collections.Counter[str]], dict[str, int]]:
    """Returns {room: {"lines", "files", "errors"}}, and the totals by the names of their ceilings."""
    rooms: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
    others: collections.Counter[str] = collections.Counter()
    for path in tracked_files():
        text = (ROOT / path).read_text("utf-8")
        room = room_of(path)
        if room.startswith(("bert_jax", "data_pipelines")):
            rooms[room] += collections.Counter(
                lines=text.count("\n"), files=1, errors=text.count("UserError(")
            )
        else:
            others[room] += text.count("\n")
    product = sum(rooms.values(), collections.Counter())
    totals = {
        "product lines": product["lines"],
        "product files": product["files"],
        "places that raise a `UserError`": product["errors"],
        "test lines": others["tests"],
        "benchmark lines": others["benchmarks"],
    }
    return rooms, totals | interface()


def interface() -> dict[str, int]:
    """Counts the commands, their flags, and the fields of a pre-training config."""
    from absl import flags as absl_flags

    from bert_jax import cli
    from bert_jax.settings import config_fields, defaults
    from bert_jax.settings.flags import Define

    count = 0
    for command in cli.COMMANDS:
        define = Define(absl_flags.FlagValues())
        cli.module_of(command).define_flags(define)
        count += len(list(define.values))
    fields = config_fields.flatten(defaults.pretrain("tiny").to_dict())
    return {
        "commands": len(cli.COMMANDS),
        "flags of all commands": count,
        "fields of a pre-training config": len(list(fields)),
    }


def executed_files() -> list[str]:
    """Returns the product files whose functions 12 steps of `pretrain/tiny` call, in a fresh process."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        text = folder / "corpus.txt"
        text.write_text("".join(f"Sentence {i} has {i} words.\n\n"[: 20 + i % 9] for i in range(4000)))

        def bert_jax(*argv: str) -> None:
            subprocess.run([sys.executable, "-m", "bert_jax", *argv], cwd=ROOT, check=True, stdout=sys.stderr)

        bert_jax("vocab", f"--input={text}", f"--output={folder}/vocab.txt", "--size=200")
        bert_jax("data", f"--input={text}", f"--vocab={folder}/vocab.txt", f"--output={folder}/records")
        argv = ["pretrain", "--config=pretrain/tiny", f"--workdir={folder}/run", "--config.steps=12"]
        argv += [f"--config.data.dir={folder}/records", "--config.optimizer.warmup_steps=2"]
        output = folder / "executed.json"
        folders = (f"{ROOT}/bert_jax/", f"{ROOT}/data_pipelines/")  # not .venv
        program = _EXECUTED.format(folders=folders, argv=argv, output=str(output))
        subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=True, stdout=sys.stderr)
        return [str(Path(path).relative_to(ROOT)) for path in json.loads(output.read_text())]


def over_ceilings(totals: dict[str, int]) -> list[str]:
    """Returns one line for each total that exceeds its ceiling in CONTRIBUTING.md, or that has none."""
    table = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
    ceilings = {name: int(number.replace(",", "")) for name, number in _CEILING.findall(table)}
    lines = [f"{name}: CONTRIBUTING.md has no ceiling" for name in totals if name not in ceilings]
    return lines + [
        f"{name}: {number:,}, and the ceiling in CONTRIBUTING.md is {ceilings[name]:,}"
        for name, number in totals.items()
        if number > ceilings.get(name, number)
    ]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="exit with 1 if a total exceeds its ceiling")
    parser.add_argument("--run", action="store_true", help="count the files that a short run executes")
    arguments = parser.parse_args()
    rooms, totals = measure()
    if arguments.run:
        totals["files executed by 12 steps of pretrain/tiny"] = len(executed_files())
    if arguments.check:
        over = over_ceilings(totals)
        print(*over, sep="\n", end="\n" if over else "")
        return int(bool(over))
    print("| room | lines | files | user errors |\n|---|---|---|---|")
    for room, counts in sorted(rooms.items()):
        print(f"| {room} | {counts['lines']:,} | {counts['files']} | {counts['errors']} |")
    print("\n| total | number |\n|---|---|")
    for name, number in totals.items():
        print(f"| {name} | {number:,} |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
