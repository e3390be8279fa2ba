#!/usr/bin/env bash
# The table of estimates for TPUs: Base and Large on several slices; prints a markdown table. No TPU is needed.
#
#   benchmarks/estimates.sh [OUTPUT_DIR]
#
#   BERT_JAX=.venv/bin/bert-jax   the command; needs libtpu (pip install -e '.[estimate]')
#
# One compilation after another, a core and some minutes each. The JSON of each estimate stays in OUTPUT_DIR, and what
# is there already is not compiled again.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
BERT_JAX="${BERT_JAX:-.venv/bin/bert-jax}"
results="${1:-estimates}"
mkdir -p "$results"

estimate() { # name size length topology flags...
  local file="$results/$1.json"
  if [ ! -s "$file" ]; then
    "$BERT_JAX" estimate --config="configs/pretrain/$2.py" --seq_length="$3" --topology="$4" --json "${@:5}" >"$file.new"
    mv "$file.new" "$file"
  fi
}

fused=--config.model.attention_probs_dropout_prob=0
unrolled=--config.model.scan_unroll=0
estimate base-128-v5e-4x4 base 128 v5e:4x4 --config.batch_size=1024
estimate base-512-v5e-4x4 base 512 v5e:4x4
estimate base-512-v5e-4x4-fused base 512 v5e:4x4 "$fused"
estimate base-512-v5e-4x4-fused-unrolled base 512 v5e:4x4 "$fused" "$unrolled"
estimate large-512-v5e-4x4 large 512 v5e:4x4 "$fused" --config.batch_size=128 --config.mesh.fsdp=4
estimate base-512-v5e-16x16 base 512 v5e:16x16 "$fused" --config.batch_size=4096
estimate large-512-v5e-16x16 large 512 v5e:16x16 "$fused" --config.batch_size=2048 --config.mesh.fsdp=4
estimate large-512-v4-8x8x8 large 512 v4:8x8x8 "$fused" --config.batch_size=8192
estimate large-512-v5p-4x4x4 large 512 v5p:4x4x4 "$fused" --config.batch_size=2048
estimate large-512-v6e-16x16 large 512 v6e:16x16 "$fused" --config.batch_size=4096

python3 - "$results" <<'PY'
import json, pathlib, sys
print("| estimate | chips | rows a chip | attention | GiB a chip | step, ms | roofline, ms | MFU | sequences/s | compiled in, s |")
print("|---|---|---|---|---|---|---|---|---|---|")
for path in sorted(pathlib.Path(sys.argv[1]).glob("*.json")):
    r = json.loads(path.read_text())
    cells = [path.stem, r["topology"]["chips"], r["rows_per_chip"], r["model"]["attention"],
             f"{r['memory_bytes']['total'] / 2**30:.2f}"]
    if r["fits"]:
        cells += [f"{r['seconds']['step'] * 1e3:.1f}", f"{r['seconds']['roofline'] * 1e3:.1f}", f"{r['mfu']:.1%}",
                  f"{r['sequences_per_second']:,.0f}", f"{r['compile_seconds']:.0f}"]
    else:
        cells += [f"does not fit; {r['largest_batch']['rows_per_chip']} rows a chip do", "", "", "", ""]
    print("| " + " | ".join(map(str, cells)) + " |")
PY
