#!/usr/bin/env bash
USAGE="Several processes of one run on this machine, each with CPU devices of its own: multi-host training to try out.

  launch/local.sh --processes=2 --devices=4 -- bert-jax pretrain --config=pretrain/tiny --workdir=...

The command gets --coordinator_address, --num_processes and --process_id. Each line of output is prefixed with the
number of its process. When one fails, the others get SIGTERM, and SIGKILL after --grace_seconds; after exit code 3
(stopped on purpose, as all of them are then) they have that time to end by themselves. SIGTERM and Ctrl-C go to
all. Exits with the code of the first that failed.

  --processes=2
  --devices=1          of each process
  --port=PORT          of the coordinator, on the loopback interface; by default a random one
  --grace_seconds=60"
# shellcheck source=launch/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
processes=2 devices=1 port=$((20000 + RANDOM % 10000)) grace_seconds=60
parse "processes devices port grace_seconds" -- "$@"
[[ -z "$VERB" ]] || die "$VERB: not expected; the command comes after --"
need_command
need_counts processes devices grace_seconds port

export JAX_PLATFORMS=cpu XLA_FLAGS="${XLA_FLAGS:+$XLA_FLAGS }--xla_force_host_platform_device_count=$devices"
place=(--coordinator_address="127.0.0.1:$port" --num_processes="$processes")
children=() result=0 deadline=0
tell() { kill -s "$1" "${children[@]}" 2>/dev/null || true; }
trap 'tell TERM' TERM INT
for ((i = 0; i < processes; i++)); do
  # A signal to the group must not end the filter before the process, whose last lines it prints.
  "${COMMAND[@]}" "${place[@]}" --process_id="$i" > >(trap '' TERM INT && exec sed -u "s/^/[$i] /") 2>&1 &
  children+=("$!")
done
while ((${#children[@]})); do
  for i in "${!children[@]}"; do
    ! kill -0 "${children[i]}" 2>/dev/null || continue
    code=0
    wait "${children[i]}" || code=$?
    unset "children[i]"
    if ((code != 0 && result == 0)); then
      result=$code deadline=$((SECONDS + grace_seconds))
      say "process $i exited with $code"
      ((code == 3)) || tell TERM
    fi
  done
  if ((deadline && SECONDS >= deadline && ${#children[@]})); then
    say "not ended after $grace_seconds s: killed"
    tell KILL
  fi
  sleep 0.2 || true
done
exit "$result"
