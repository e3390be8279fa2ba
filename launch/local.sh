#!/usr/bin/env bash
USAGE="Several processes of one run on this machine, each with CPU devices of its own: multi-host training to try out.

  launch/local.sh --processes=2 --devices=4 -- bert-jax pretrain --config=pretrain/tiny --workdir=...

The command gets --coordinator_address, --num_processes and --process_id. Each line of output is prefixed with the
process that wrote it. When one fails, the others get SIGTERM, and SIGKILL after --grace_seconds; when one exits
with 3 (stopped on purpose, as all of them are then) they have that time to end by themselves. SIGTERM and Ctrl-C
go to all. Exits with the code of the first that failed.

  --processes=2
  --devices=1          of each process
  --port=PORT          of the coordinator, on the loopback interface; by default one that is free
  --grace_seconds=60
  --dry_run            print the commands and run none"
# shellcheck source=launch/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
processes=2 devices=1 port="" grace_seconds=60
parse "processes devices port grace_seconds" "" "" -- "$@"
no_words
need_command
need_counts processes devices grace_seconds
if [[ -z "$port" ]]; then
  # Below the ports that the system hands out itself.
  for _ in {1..50}; do
    port=$((20000 + RANDOM % 10000))
    (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null || break
  done
fi
need_counts port

# Sets $words to the command of process $1.
command_of() {
  local flags="${XLA_FLAGS:+$XLA_FLAGS }--xla_force_host_platform_device_count=$devices"
  words=(env JAX_PLATFORMS=cpu "XLA_FLAGS=$flags" "${COMMAND[@]}" --coordinator_address="127.0.0.1:$port"
    --num_processes="$processes" --process_id="$1")
}

if "$dry_run"; then
  for ((i = 0; i < processes; i++)); do
    command_of "$i"
    printf '%s &\n' "$(quoted "${words[@]}")"
  done
  echo wait
  exit
fi

scratch="$(mktemp -d)"
trap 'rm -rf "$scratch"' EXIT
mkfifo "$scratch/ended"
exec 9<>"$scratch/ended"

# Runs process $1 and passes SIGTERM on to it. Writes to fd 9 when it is ready for that signal, and how it ended.
run_one() {
  local code child="" told=false
  set +m
  trap 'told=true; [[ -z "$child" ]] || kill "$child" 2>/dev/null || true' TERM
  echo "$1 ready" >&9
  command_of "$1"
  "${words[@]}" 9<&- &
  child=$!
  ! "$told" || kill "$child" 2>/dev/null || true
  while true; do
    code=0
    wait "$child" || code=$?
    kill -0 "$child" 2>/dev/null || break
  done
  # A signal may have ended the wait just before the process ended; its code is still there to be asked for.
  wait "$child" 2>/dev/null || code=$?
  echo "$1 $code" >&9
}

# groups: the process groups that are ready for SIGTERM and have not ended. A signal before that would end the shell
# that runs the process, before it can write how the process ended or even open its output, which sed waits for.
groups=() started=() prefixers=() told=false
tell() {
  local group
  told=true
  for group in "${groups[@]}"; do
    [[ -z "$group" ]] || kill -s TERM -- "$group" 2>/dev/null || true
  done
}
kill_all() {
  local group
  for group in "${started[@]}"; do
    kill -s KILL -- "-$group" 2>/dev/null || true
  done
}
trap tell TERM INT

for ((i = 0; i < processes; i++)); do
  mkfifo "$scratch/output-$i"
  # A signal to all must not end it before the processes, whose last lines it prints.
  (trap '' TERM INT; exec sed -u "s/^/[$i] /" <"$scratch/output-$i" 9<&-) &
  prefixers+=("$!")
  # With job control each has a process group of its own.
  set -m
  run_one "$i" >"$scratch/output-$i" 2>&1 &
  started+=("$!")
  groups+=("")
  set +m
done

result=0 timer=""
for ((left = processes; left > 0; )); do
  read -r who code <&9 || continue
  if [[ "$who" == timer ]]; then
    say "not ended after $grace_seconds s: killed"
    kill_all
    break
  fi
  if [[ "$code" == ready ]]; then
    groups[who]="${started[who]}"
    ! "$told" || kill -s TERM -- "${started[who]}" 2>/dev/null || true
    continue
  fi
  left=$((left - 1))
  groups[who]=""
  if ((code != 0 && result == 0)); then
    result="$code"
    say "process $who exited with $code"
    ((code == 3)) || tell
    (sleep "$grace_seconds" && echo "timer 0" >&9) >/dev/null 2>&1 &
    timer="$!"
  fi
done
if [[ -n "$timer" ]]; then
  kill "$timer" 2>/dev/null || true
fi
wait "${started[@]}" 2>/dev/null || true
# What a process left behind would hold its output open.
kill_all
wait "${prefixers[@]}" || true
exit "$result"
