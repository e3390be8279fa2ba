#!/usr/bin/env bash
USAGE="Restarts a command on one machine when it was stopped on purpose or has crashed.

  launch/restart.sh [flags] -- bert-jax pretrain --config=... --workdir=...

  exit 0                  done
  exit 2, 126, 127, 130   a user error, no such command, an interrupt: not restarted
  any other               stopped on purpose (3), a crash, a full disk: restarted
  SIGTERM, SIGINT         passed on; the command saves and is not restarted

The pause before the next attempt doubles with each consecutive attempt that ends within 5 minutes, and after five of
them the script gives up. It exits with the last exit code of the command.

  --status_file=FILE    contains 'running PID', then 'exit CODE'
  --pause_seconds=5     before the next attempt, to at most 10 minutes"
# shellcheck source=launch/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
status_file="" pause_seconds=5
parse "status_file pause_seconds" -- "$@"
[[ -z "$VERB" ]] || die "unexpected argument $VERB; the command comes after --"
need_command

child="" received=""
forward() {
  received="$1"
  [[ -z "$child" ]] || kill -s "$1" "$child" 2>/dev/null || true
}
trap 'forward TERM' TERM
trap 'forward INT' INT

note() {
  [[ -z "$status_file" ]] || printf '%s\n' "$1" >"$status_file" || say "cannot write '$1' to $status_file"
}

# Sets $code to the exit code of the child. A signal to this shell interrupts `wait`, which is then called again.
wait_for_child() {
  while true; do
    code=0
    wait "$child" || code=$?
    kill -0 "$child" 2>/dev/null || break
  done
  local again=0
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
  set -m # with job control, or else what runs in the background ignores SIGINT
  "${COMMAND[@]}" &
  child=$!
  set +m
  [[ -z "$received" ]] || forward "$received"
  wait_for_child
  case "$code" in
    0 | 2 | 126 | 127 | 130) finish "$code" ;;
  esac
  [[ -z "$received" ]] || finish "$code"
  if ((SECONDS - began < 300)); then
    fast=$((fast + 1))
    ((fast < 5)) || {
      say "exit code $code; $fast consecutive attempts ended within 300 s: giving up"
      finish "$code"
    }
    ((fast == 1)) || pause=$((pause * 2 < 600 ? pause * 2 : 600))
  else
    fast=0 pause="$pause_seconds"
  fi
  say "exit code $code after $((SECONDS - began)) s; restarting in $pause s"
  last="$code"
  sleep "$pause" &
  child=$!
  [[ -z "$received" ]] || forward "$received"
  wait_for_child
  [[ -z "$received" ]] || finish "$last"
done
