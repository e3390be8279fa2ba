#!/usr/bin/env bash
# Everything to be measured on a machine with an NVIDIA GPU, within ten minutes; one markdown table at the end.
#
#   benchmarks/gpu.sh [--small]
#
# Needs a Python with jax[cuda], flax, optax, orbax-checkpoint and torch; transformers for the peer. Not bert_jax,
# which comes from this checkout, nor a network. --small: tiny shapes, to try the script on a machine without a GPU.
#
#   PYTHON=python3              runs bert_jax
#   PEER=../shared/peers/hf_torch_pretrain.py   called as PEER SIZE BATCH LENGTH [--strong] [--dropout P] [--steps N]
#   PEER_PYTHON=$PYTHON         runs the peer
#   SECONDS_IN_ALL=570          after which nothing more is started
#   OUTPUT=gpu-benchmark        table.md, rows.json, log.txt
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
export PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}"
export TOKENIZERS_PARALLELISM=false HF_HUB_OFFLINE=1
export CUDA_VISIBLE_DEVICES="${CUDA_VISIBLE_DEVICES:-0}" # one device, as the peer uses
export JAX_COMPILATION_CACHE_DIR="${JAX_COMPILATION_CACHE_DIR:-${TMPDIR:-/tmp}/bert_jax-gpu-xla}"
PYTHON="${PYTHON:-python3}"
PEER="${PEER:-../shared/peers/hf_torch_pretrain.py}"
PEER_PYTHON="${PEER_PYTHON:-$PYTHON}"
OUTPUT="${OUTPUT:-gpu-benchmark}"
end=$((SECONDS + ${SECONDS_IN_ALL:-570}))
small=()
[ "${1:-}" = --small ] && small=(--small --rounds=1)
mkdir -p "$OUTPUT"

lacks() {
  local python=$1
  shift
  "$python" - "$@" <<'PY'
import importlib.util, sys
print(" ".join(name for name in sys.argv[1:] if importlib.util.find_spec(name) is None))
PY
}

need=$(lacks "$PYTHON" jax flax optax numpy) || exit 1
if [ -n "$need" ]; then
  echo "gpu.sh: $PYTHON has no $need; install them or name another: PYTHON=/path/to/python $0" >&2
  exit 1
fi
peer=(--peer="$PEER" --peer_python="$PEER_PYTHON")
need=$(lacks "$PEER_PYTHON" torch transformers)
if [ ! -f "$PEER" ]; then
  echo "gpu.sh: no peer at $PEER: measuring bert_jax alone"
  peer=()
elif [ -n "$need" ]; then
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

tests=$(grep -rl 'mark\.gpu' tests --include='*.py')
if [ -z "$memory" ]; then
  echo "- tests that need a GPU: left out"
elif [ -n "$(lacks "$PYTHON" pytest)" ] || [ -z "$tests" ]; then
  echo "- tests that need a GPU: left out ($PYTHON has no pytest, or there are none)"
else
  JAX_PLATFORMS=cuda,cpu XLA_PYTHON_CLIENT_PREALLOCATE=false timeout 120 \
    "$PYTHON" -m pytest -q -m gpu -p no:cacheprovider $tests </dev/null || echo "- tests that need a GPU: FAILED"
fi

"$PYTHON" benchmarks/gpu_table.py all "${peer[@]}" --seconds=$((end - SECONDS)) --output="$OUTPUT" \
  ${memory:+--memory_gib=$((memory / 1024))} "${small[@]}" </dev/null
