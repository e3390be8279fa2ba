"""Counts the lines of Python by folder in two commits of this repository, as a Markdown table.

python benchmarks/lines.py BEFORE [AFTER]
"""

import collections
import subprocess
import sys

_ROWS = ("bert_jax", "data_pipelines", "configs", "benchmarks", "docs", "tests")


def count(commit: str) -> collections.Counter[str]:
    """Returns the lines of the Python files of a commit, by folder; those of bert_jax by package."""

    def git(*args: str) -> str:
        return subprocess.run(["git", *args], capture_output=True, text=True, check=True).stdout

    lines: collections.Counter[str] = collections.Counter()
    for path in git("ls-tree", "-r", "--name-only", commit).splitlines():
        parts = path.split("/")
        if path.endswith(".py") and parts[0] in _ROWS:
            folder = "/".join(parts[:2]) if parts[0] == "bert_jax" and len(parts) > 2 else parts[0]
            lines[folder] += git("show", f"{commit}:{path}").count("\n")
    return lines


def main() -> None:
    before, after = sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else "HEAD"
    tables = count(before), count(after)
    print("| folder | before | after | difference |\n|---|---|---|---|")
    rows = sorted({*tables[0], *tables[1]})
    sums = {"bert_jax in all": [row for row in rows if row.startswith("bert_jax")]}
    sums["bert_jax and data_pipelines"] = [*sums["bert_jax in all"], "data_pipelines"]
    for name in [*rows, *sums]:
        old, new = (sum(table[row] for row in sums.get(name, [name])) for table in tables)
        print(f"| {name} | {old:,} | {new:,} | {new - old:+,} |")


if __name__ == "__main__":
    main()
