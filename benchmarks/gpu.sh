#!/usr/bin/env bash
# Checks and measures bert_jax on a machine with an NVIDIA GPU, within ten minutes.
#
#   benchmarks/gpu.sh [--small]
#
# Needs a Python with jax[cuda], flax, optax, orbax-checkpoint and torch; transformers for the peer. It needs neither
# a network nor an installed bert_jax, which comes from this checkout; other dependencies may be wheels in a folder.
# --small: tiny shapes, to try the script on a machine without a GPU.
#
#   PARTS="checks table"        also "profile", of the step of Base; "table" compares with PyTorch
#   PYTHON=python3              runs bert_jax
#   WHEELS=.wheels              wheels that this run uses, such as google_crc32c and ml_collections; made by
#                               pip download --no-deps -d .wheels NAME...
#   GLUE=DIR MODEL=MODEL        also fine-tunes this model on MRPC, from the folder of GLUE's tasks
#   PEER_PYTHON=$PYTHON         runs the peer
#   SECONDS_IN_ALL=570          starts nothing after this time
#   OUTPUT=gpu-benchmark        table.md, table.png, results.jsonl, log.txt, and a log of each check; by default
#                               $OUT, where that is set
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit
export PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}"
export TOKENIZERS_PARALLELISM=false HF_HUB_OFFLINE=1
# bert_jax and the peer use the GPU at the same time.
export XLA_PYTHON_CLIENT_PREALLOCATE=false
export CUDA_VISIBLE_DEVICES="${CUDA_VISIBLE_DEVICES:-0}" # one device, as the peer uses
export JAX_COMPILATION_CACHE_DIR="${JAX_COMPILATION_CACHE_DIR:-${TMPDIR:-/tmp}/bert_jax-gpu-xla}"
PYTHON="${PYTHON:-python3}"
WHEELS="${WHEELS:-.wheels}"
PEER_PYTHON="${PEER_PYTHON:-$PYTHON}"
OUTPUT="${OUTPUT:-${OUT:-gpu-benchmark}}"
PARTS=" ${PARTS:-checks table} "
end=$((SECONDS + ${SECONDS_IN_ALL:-570}))
small=()
[ "${1:-}" = --small ] && small=(--small)
mkdir -p "$OUTPUT"

lacks() {
  local python=$1
  shift
  "$python" - "$@" <<'PY'
import importlib.util, sys
print(" ".join(name for name in sys.argv[1:] if importlib.util.find_spec(name) is None))
PY
}

wheels=()
for wheel in "$WHEELS"/*.whl; do
  [ -f "$wheel" ] && wheels+=("$wheel")
done
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
if [ ${#wheels[@]} -gt 0 ]; then
  installed=$scratch/site
  if "$PYTHON" -m pip install -q --no-deps --no-index --target "$installed" "${wheels[@]}"; then
    export PYTHONPATH="$PYTHONPATH:$installed"
  else
    echo "gpu.sh: the wheels in $WHEELS cannot be installed; continuing without them"
  fi
fi

need=$(lacks "$PYTHON" jax flax optax numpy) || exit 1
if [ -n "$need" ]; then
  echo "gpu.sh: $PYTHON has no $need; install them or name another: PYTHON=/path/to/python $0" >&2
  exit 1
fi
peer=(--peer_python="$PEER_PYTHON")
need=$(lacks "$PEER_PYTHON" torch transformers)
if [ -n "$need" ]; then
  echo "gpu.sh: $PEER_PYTHON has no $need: measuring bert_jax alone"
  peer=()
fi

memory=$(nvidia-smi --query-gpu=memory.total --format=csv,noheader,nounits -i 0 2>/dev/null | head -n 1)
if [ -n "$memory" ]; then
  nvidia-smi --query-gpu=name,driver_version,memory.total,clocks.max.sm,power.limit --format=csv,noheader
  "$PYTHON" -c 'import jax; print("jax", jax.__version__, jax.devices())' || exit 1
else
  echo "gpu.sh: no NVIDIA GPU here; figures are of the CPU"
fi

has() { [[ $PARTS == *" $1 "* ]]; }

# part NAME SECONDS COMMAND...: runs it, writes its output to NAME.log, and prints its outcome. On a CPU it may take longer.
part() {
  local name=$1 limit=$(($2 * (${memory:-0} ? 1 : 5))) state=done
  shift 2
  timeout "$limit" "$@" </dev/null >"$OUTPUT/$name.log" 2>&1 || state=FAILED
  echo "- $name: $state, $SECONDS s after the start"
}

# shown NAME...: prints the ends of these logs.
shown() {
  local name
  for name in "$@"; do
    echo "--- $name"
    tail -n 25 "$OUTPUT/$name.log"
  done
}

if has checks; then
  # At the same time: nothing is timed here, and most of the work is compilation.
  running=()
  mapfile -t tests < <(grep -rl 'mark\.gpu' tests --include='*.py')
  if [ -z "$memory" ]; then
    echo "- tests that need a GPU: skipped"
  elif [ -n "$(lacks "$PYTHON" pytest)" ] || [ ${#tests[@]} -eq 0 ]; then
    echo "- tests that need a GPU: skipped ($PYTHON has no pytest, or there are none)"
  else
    # These replace the flags that tests set for quick compilation on a CPU.
    XLA_FLAGS="--xla_force_host_platform_device_count=1 --xla_backend_optimization_level=3" \
      JAX_PLATFORMS=cuda,cpu part tests 120 "$PYTHON" -m pytest -q -m gpu -p no:cacheprovider "${tests[@]}" &
    running+=($!)
  fi
  if [ -z "$(lacks "$PYTHON" google_crc32c ml_collections tokenizers)" ]; then
    part demo 120 "$PYTHON" -m bert_jax demo --quick --workdir="$scratch/demo" &
    running+=($!)
    if [ -n "${GLUE:-}" ]; then
      part glue 120 "$PYTHON" -m bert_jax finetune --config=finetune/glue:mrpc --workdir="$scratch/mrpc" \
        --model="$MODEL" --config.data_dir="$GLUE" &
      running+=($!)
    fi
  fi
  part attention 120 "$PYTHON" benchmarks/gpu_checks.py attention &
  running+=($!)
  part gradients 120 "$PYTHON" benchmarks/gpu_checks.py gradients "${small[@]}" &
  running+=($!)
  wait "${running[@]}"
  for name in tests demo glue attention gradients; do
    [ -f "$OUTPUT/$name.log" ] && shown "$name"
  done
fi
if has profile && [ -n "$memory" ]; then
  part step 120 "$PYTHON" benchmarks/gpu_checks.py step base 64 512 packed:0.1:0.1:bfloat16 --output="$OUTPUT"
  shown step
fi
has table || exit 0

# compare VARIANTS FLAGS...: measures more lines of the table, in the remaining time.
compare() {
  local variants=$1
  shift
  [ -z "$memory" ] && variants=${variants//bfloat16/float32}
  "$PYTHON" benchmarks/compare "${peer[@]}" --variants="$variants" --patience=0 --seconds=$((end - SECONDS)) \
    --output="$OUTPUT" ${memory:+--memory_gib=$((memory / 1024))} "${small[@]}" "${small[@]/--small/--rounds=1}" "$@" </dev/null >"$scratch/table"
}

# First the peer's setting and the same sequences packed, then cheaper and more expensive settings.
main=padded:0.1:0.1:bfloat16,packed:0.1:0.1:bfloat16
compare $main --kinds=matrix,train --models=base,large --lengths=512
compare $main --kinds=train,finetune --models=base --lengths=128
compare $main --kinds=forward --models=base --lengths=128,512
compare packed:0.1:0.0:bfloat16,padded:0.0:0.0:bfloat16,packed:0.1:0.0:float32 --kinds=train --models=base --lengths=512
compare $main --kinds=train,finetune --models=large --lengths=128
compare padded:0.1:0.1:bfloat16 --kinds=train --models=base,large --lengths=512 --stock
cat "$scratch/table"
