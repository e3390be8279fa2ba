#!/usr/bin/env bash
USAGE="Keeps a run going on one machine: starts the command again when it was stopped on purpose or has crashed.

  launch/restart.sh [--status_file=FILE] [flags] -- bert-jax pretrain --config=... --workdir=...

  exit 0            done
  exit 2, 130       a user error, an interrupt: not started again
  exit 126, 127     the command is not there or not executable: not started again
  exit 3            stopped to be started again (preempted): started again
  any other         a crash (137, 143, ...), a full disk or a bucket that does not answer (1): started again
  SIGTERM, SIGINT   passed on; the command saves, and is not started again

An attempt that ends within --fast_seconds is fast. The pause before the next attempt doubles with each consecutive
fast attempt, and after --max_fast of them the script gives up. It exits with the last exit code of the command.

  --status_file=FILE    holds 'running PID', then 'exit CODE': for those who watch from elsewhere
  --fast_seconds=300    a shorter attempt is fast
  --max_fast=5          consecutive fast attempts after which to give up
  --pause_seconds=5     before the next attempt; doubles with each fast attempt, to at most 10 minutes
  --dry_run             print the command and do nothing"
# shellcheck source=launch/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
status_file="" fast_seconds=300 max_fast=5 pause_seconds=5
parse "status_file fast_seconds max_fast pause_seconds" "" "" -- "$@"
no_words
need_command
need_counts fast_seconds max_fast
[[ "$pause_seconds" =~ ^(0|[1-9][0-9]{0,5})$ ]] || die "--pause_seconds=$pause_seconds: expected a whole number"
if "$dry_run"; then
  run "${COMMAND[@]}"
  exit
fi
[[ -z "$status_file" || (-w "$(dirname "$status_file")" && "$status_file" != */ && ! -d "$status_file") ]] ||
  die "--status_file=$status_file: its directory is not there, or cannot be written"

child="" received=""
forward() {
  received="$1"
  [[ -z "$child" ]] || kill -s "$1" "$child" 2>/dev/null || true
}
trap 'forward TERM' TERM
trap 'forward INT' INT

note() {
  if [[ -n "$status_file" ]]; then
    # The run goes on without its status file: a full disk may have space again later.
    { printf '%s\n' "$1" >"$status_file.new" && mv -f "$status_file.new" "$status_file"; } 2>/dev/null ||
      say "cannot write '$1' to $status_file"
  fi
}

# The exit code of the child into $code. A signal to this shell interrupts `wait`, and the child may end between
# that and the next question, so the code is asked for once more, when it has surely ended.
wait_for_child() {
  local again
  while true; do
    code=0
    wait "$child" || code=$?
    kill -0 "$child" 2>/dev/null || break
  done
  again=0
  wait "$child" 2>/dev/null || again=$?
  ((again == 127)) || code="$again"
  child=""
}

finish() {
  note "exit $1"
  exit "$1"
}

fast=0 pause="$pause_seconds"
while true; do
  note "running $$"
  began=$SECONDS
  # With job control, or else what runs in the background ignores SIGINT.
  set -m
  "${COMMAND[@]}" &
  child=$!
  set +m
  [[ -z "$received" ]] || forward "$received"
  wait_for_child
  case "$code" in
    0 | 2 | 126 | 127 | 130) finish "$code" ;;
  esac
  if [[ -n "$received" ]]; then
    say "stopped by SIG$received; exit code $code"
    finish "$code"
  fi
  if ((SECONDS - began < fast_seconds)); then
    fast=$((fast + 1))
    if ((fast >= max_fast)); then
      say "exit code $code; $fast attempts in a row were over within $fast_seconds s: giving up"
      finish "$code"
    fi
    ((fast == 1)) || pause=$((pause * 2 < 600 ? pause * 2 : 600))
  else
    fast=0 pause="$pause_seconds"
  fi
  say "exit code $code after $((SECONDS - began)) s; starting again in $pause s"
  last="$code"
  sleep "$pause" &
  child=$!
  [[ -z "$received" ]] || forward "$received" # came before there was a child to have it
  wait_for_child
  [[ -z "$received" ]] || finish "$last"
done
