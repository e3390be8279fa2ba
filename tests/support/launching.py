"""Stand-ins for gcloud, kubectl and Slurm's commands: they record their calls, and answer as told."""

import os
import subprocess
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
LAUNCH = REPOSITORY / "launch"

# Words that a shell, Kubernetes or YAML would take apart if they were not quoted.
NASTY = [
    "it's",
    'a "quote"',
    "$HOME $(id) `id` ${PATH}",
    "$$",
    "a  b",
    "*",
    "x;y|z&",
    "back\\slash",
    "",
    "new\nline\ttab",
    "Zürich 中文",
    "--config.masking={'a': [1, 2]}",
    "~",
    "__NAME__",
    "#no: comment",
]

_RECORD = """#!/usr/bin/env bash
printf '%s\\0' "${0##*/}" "$@" $'\\x1e' >>"$STAND_INS/calls"
if [[ "$*" == *--filename=-* ]]; then cat >"$STAND_INS/input"; fi
# The next of the answers in a file, the last one again and again.
answer() {
  local line
  [[ -s "$STAND_INS/$1" ]] || return 0
  read -r line <"$STAND_INS/$1"
  [[ "$(wc -l <"$STAND_INS/$1")" -le 1 ]] || sed -i 1d "$STAND_INS/$1"
  case "$line" in
    NOT_FOUND) echo "ERROR: NOT_FOUND: Resource 'x' was not found" >&2; exit 1 ;;
    FULL) echo 'ERROR: There is no more capacity in the zone' >&2; exit 1 ;;
    *) echo "$line" ;;
  esac
}
case "${0##*/} $*" in
  gcloud*queued-resources\\ describe*) answer request ;;
  gcloud*tpu-vm\\ describe*) answer node ;;
  gcloud*\\ create\\ *) answer create ;;
  gcloud*run.status*restart.sh*) ;;
  gcloud*run.status*lost*) answer status | tr , '\\n' ;;
  scontrol\\ show*) cat "$STAND_INS/hosts" ;;
esac
"""


class StandIns:
    """A PATH of stand-ins.

    Args:
        path: an empty directory.
        names: of the commands.
        answers: see `answers`.
    """

    def __init__(self, path, names, **answers):
        self.path = Path(path)
        bin_path = self.path / "bin"
        bin_path.mkdir(parents=True)
        for name in names:
            (bin_path / name).write_text(_RECORD)
            (bin_path / name).chmod(0o755)
        self.environment = {
            "PATH": f"{bin_path}:/usr/local/bin:/usr/bin:/bin",
            "HOME": str(self.path / "home"),
            "STAND_INS": str(self.path),
            "LC_ALL": "C.UTF-8",
        }
        self.answers(**answers)

    def answers(self, **answers):
        """What is answered to a kind of question: node="READY PREEMPTED" a word a time, the last for ever."""
        for name, words in answers.items():
            lines = words.split()
            (self.path / name).write_text("".join(f"{line}\n" for line in lines))

    def run(self, *command, check=0, env=None, **options):
        """Runs a command; asserts its exit code; returns the CompletedProcess."""
        done = subprocess.run(
            [str(word) for word in command],
            env=self.environment | (env or {}),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=300,
            **options,
        )
        assert done.returncode == check, done.stdout + done.stderr
        return done

    def calls(self):
        """The calls since this was last asked, each a list of words."""
        file = self.path / "calls"
        if not file.exists():
            return []
        content = file.read_bytes().decode()
        os.unlink(file)
        return [call.split("\0")[:-1] for call in content.split("\x1e\0")[:-1]]
