#!/usr/bin/env bash
# The train step on this machine's CPU beside the peer, in turn (A B A B ...), in float32; prints a markdown table.
#
#   benchmarks/cpu.sh [PAIRS]
#
#   BERT_JAX=.venv/bin/bert-jax                  the command to measure
#   PEER=../shared/peers/hf_torch_pretrain.py    called as PEER SIZE BATCH LENGTH [--strong] --dropout P --steps N
#   PEER_PYTHON=python3                          runs the peer: needs torch and transformers
#   QUICK=1                                      the stock peer and bert_jax alone
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
export JAX_PLATFORMS=cpu
BERT_JAX="${BERT_JAX:-.venv/bin/bert-jax}"
PEER="${PEER:-../shared/peers/hf_torch_pretrain.py}"
PEER_PYTHON="${PEER_PYTHON:-python3}"
case "${1:-}" in -h | --help) sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' benchmarks/cpu.sh; exit ;; esac
[ -f "$PEER" ] || { echo "cpu.sh: PEER=$PEER: no such file; expected a script called as --help says" >&2; exit 2; }
pairs="${1:-3}"
log=$(mktemp)
trap 'rm -f "$log"' EXIT

mine() { # size batch dropout steps
  "$BERT_JAX" bench --size="$1" --batch_size="$2" --seq_length=128 --dropout="$3" --steps="$4" --dtype=float32 --json |
    python3 -c '
import json, sys
rate = json.load(sys.stdin)["train_step"]["sequences_per_second"]
print(rate["best"], rate["median"])'
}

peer() { # size batch steps [--strong]
  "$PEER_PYTHON" "$PEER" "$1" "$2" 128 --dropout 0.1 --steps "$3" "${@:4}" |
    sed -n 's|.*best \([0-9.]*\) seq/s, median \([0-9.]*\).*|\1 \2|p'
}

record() { # what, then "best median" on standard input
  read -r best median
  echo "$1 $best $median" | tee -a "$log" >&2
}

for _ in $(seq "$pairs"); do
  for work in "base 8 6" "mini 32 10"; do
    read -r size batch steps <<<"$work"
    peer "$size" "$batch" "$steps" | record "$size:peer-stock"
    mine "$size" "$batch" 0.1 "$steps" | record "$size:bert_jax"
    [ -n "${QUICK:-}" ] && continue
    peer "$size" "$batch" "$steps" --strong | record "$size:peer-strong"
    mine "$size" "$batch" 0 "$steps" | record "$size:bert_jax-no-dropout"
  done
done

python3 - "$log" <<'PY'
import collections, statistics, sys
runs = collections.defaultdict(list)
for line in open(sys.argv[1]):
    name, best, median = line.split()
    runs[name].append((float(best), float(median)))
print("| size | what | best of all, sequences/s | median of the runs' medians | best / stock's best, pair by pair |")
print("|---|---|---|---|---|")
for name, values in runs.items():
    size, what = name.split(":")
    stock = runs[f"{size}:peer-stock"]
    ratios = ", ".join(f"{mine[0] / theirs[0]:.2f}" for mine, theirs in zip(values, stock))
    print(f"| {size} | {what} | {max(best for best, _ in values):.2f} "
          f"| {statistics.median(median for _, median in values):.2f} | {ratios} |")
PY
