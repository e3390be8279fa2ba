#!/usr/bin/env bash
USAGE="Pre-training on a Cloud TPU VM or a pod slice of them, through gcloud.

  launch/tpu_vm.sh COMMAND --name=NAME --zone=ZONE [flags] [-- bert-jax pretrain --config=... --workdir=gs://...]

  create    make it, and wait until it is ready
  install   copy this checkout to every worker, and install it there
  run       start the command after -- on every worker, with --distributed=auto, under restart.sh
  logs      follow the log of worker 0, or of --worker
  stop      stop the run, which saves a checkpoint first, and wait until no worker is running
  watch     all of it until the run is done: create, install, run; and again when the machine was preempted
  delete    delete it; a work directory on gs:// stays

Each step may be repeated: what is there is left as it is.

  --project=PROJECT               gcloud's own setting by default
  --accelerator_type=v5litepod-16
  --runtime_version=VERSION       of the image; by default the one that suits the accelerator type
  --spot                          at the lower price of capacity that may be taken away
  --queued                        wait in the queue for capacity (queued resources; not for TPU7x)
  --service_account=EMAIL         who the machines are, for the bucket
  --create_flag=FLAG              any other flag of 'gcloud compute tpus tpu-vm create' (or of 'queued-resources
                                  create'), such as --create_flag=--network=NAME; may be repeated
  --ssh_flag=FLAG                 any other flag of 'gcloud compute tpus tpu-vm ssh' and 'scp'; may be repeated
  --worker=0                      whose log
  --poll_seconds=60               between two looks at the state, at most 10 for stop
  --stop_seconds=1800             time after which stop gives up waiting, with exit code 1
  --dry_run                       print the commands, for a machine that is not there yet, and run none"
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
# shellcheck source=launch/lib.sh
source "$here/lib.sh"
name="" zone="" project="" accelerator_type=v5litepod-16 runtime_version="" service_account="" worker=0
poll_seconds=60 stop_seconds=1800 spot=false queued=false create_flag=() ssh_flag=()
parse "name zone project accelerator_type runtime_version service_account worker poll_seconds stop_seconds" \
  "create_flag ssh_flag" "spot queued" -- "$@"
verb="${WORDS[0]:-}"
is_one_of "${verb:-none}" "create install run logs stop watch delete" ||
  die "${verb:-no command}: expected create, install, run, logs, stop, watch or delete"
((${#WORDS[@]} == 1)) || die "${WORDS[1]}: not expected after $verb"
need name zone accelerator_type
[[ "$name" =~ ^[a-z]([-a-z0-9]{0,61}[a-z0-9])?$ ]] ||
  die "--name=$name: expected lower-case letters, digits and hyphens, a letter first, 63 at most"
[[ "$poll_seconds" =~ ^[0-9]{1,6}$ ]] || die "--poll_seconds=$poll_seconds: expected a whole number"
[[ "$stop_seconds" =~ ^[0-9]{1,6}$ ]] || die "--stop_seconds=$stop_seconds: expected a whole number"
[[ "$worker" =~ ^[0-9]{1,5}$ ]] || die "--worker=$worker: expected the number of one worker"
if "$queued" && [[ "$accelerator_type" == tpu7x* ]]; then
  die "--queued with $accelerator_type: TPU7x has no queued resources; use GKE (launch/gke)"
fi
case "$verb" in
  run | watch) need_command ;;
esac
if [[ -z "$runtime_version" ]]; then
  case "$accelerator_type" in
    v2-* | v3-* | v4-*) runtime_version=tpu-ubuntu2204-base ;;
    v5litepod-*) runtime_version=v2-alpha-tpuv5-lite ;;
    v5p-*) runtime_version=v2-alpha-tpuv5 ;;
    v6e-*) runtime_version=v2-alpha-tpuv6e ;;
    *) die "no runtime version is known for $accelerator_type: name one with --runtime_version" ;;
  esac
fi

need_programs gcloud

where=(--zone="$zone")
[[ -z "$project" ]] || where+=(--project="$project")
tpu_vm=(gcloud compute tpus tpu-vm)
queue=(gcloud compute tpus queued-resources)

scratch="$(mktemp -d)"
trap 'rm -rf "$scratch"' EXIT

# ask COMMAND...: its output into $state, and "" where gcloud says that there is no such thing.
# Without an answer (no network, no permission) it is not known what is there: returns 1.
ask() {
  if "$dry_run"; then
    try "$@"
    state="$supposed"
    return
  fi
  state=""
  if state="$("$@" 2>"$scratch/errors")"; then
    return
  fi
  state=""
  grep -qiE 'not_?found|was not found' "$scratch/errors" && return
  say "no answer from gcloud: $(tr '\n' ' ' <"$scratch/errors")"
  return 1
}

# The state of the machine, or of the request for it while that waits in the queue.
ask_state() {
  if "$queued"; then
    supposed="${1:-}"
    ask "${queue[@]}" describe "$name" "${where[@]}" --format='value(state.state)' || return
    [[ "$state" == ACTIVE ]] || return 0
    supposed=READY
  else
    supposed="${1:-}"
  fi
  ask "${tpu_vm[@]}" describe "$name" "${where[@]}" --format='value(state)' || return
  # An active request whose machine has gone will not bring it back.
  [[ -n "$state" ]] || ! "$queued" || state=SUSPENDED
}

# Runs a command that requests a machine; returns 4 if there is no capacity for it, and 5 if the quota is too small.
request() {
  if "$dry_run"; then
    run "$@"
    return
  fi
  local code=0
  "$@" 2>"$scratch/errors" || code=$?
  cat "$scratch/errors" >&2
  ((code == 0)) && return
  # Both are RESOURCE_EXHAUSTED. A quota of requests per minute is free again a minute later.
  if grep -qiE 'quota.*exceed|exceed.*quota|insufficient.*quota' "$scratch/errors"; then
    ! grep -qiE 'per[ _]?(minute|second)' "$scratch/errors" || return 1
    return 5
  fi
  ! grep -qiE 'capacity|RESOURCE_EXHAUSTED|UNAVAILABLE' "$scratch/errors" || return 4
  return 1
}

create() {
  local flags=(--accelerator-type="$accelerator_type")
  ! "$spot" || flags+=(--spot)
  [[ -z "$service_account" ]] || flags+=(--service-account="$service_account")
  flags+=(--scopes=https://www.googleapis.com/auth/cloud-platform "${create_flag[@]}")
  ask_state "" || return
  if [[ -n "$state" ]]; then
    say "$name is there already: $state"
  elif "$queued"; then
    request "${queue[@]}" create "$name" "${where[@]}" --node-id="$name" \
      --runtime-version="$runtime_version" "${flags[@]}" || return
  else
    request "${tpu_vm[@]}" create "$name" "${where[@]}" --version="$runtime_version" "${flags[@]}" || return
  fi
  wait_until_ready
}

wait_until_ready() {
  while true; do
    ask_state "$("$queued" && echo ACTIVE || echo READY)" || return
    case "$state" in
      READY) return ;;
      "" | FAILED | SUSPENDING | SUSPENDED | PREEMPTED | TERMINATED | STOPPING | STOPPED | DELETING)
        say "$name is ${state:-gone}: delete it, and create it again"
        return 1
        ;;
    esac
    say "$name is $state; looking again in $poll_seconds s"
    sleep "$poll_seconds"
  done
}

# on WORKERS SCRIPT: a line of shell on these workers.
on() {
  run "${tpu_vm[@]}" ssh "$name" "${where[@]}" --worker="$1" "${ssh_flag[@]}" --command="$2"
}

install() {
  local cache="${XDG_CACHE_HOME:-$HOME/.cache}/bert_jax/launch"
  local bundle="$cache/$name.tar.gz"
  run mkdir -p "$cache" || return
  run tar -C "$here/.." --exclude=__pycache__ -czf "$bundle" \
    setup.py pyproject.toml README.md LICENSE requirements.lock bert_jax data_pipelines configs launch || return
  run "${tpu_vm[@]}" scp "$bundle" "$name:bert_jax.tar.gz" "${where[@]}" --worker=all "${ssh_flag[@]}" || return
  on all 'mkdir -p bert_jax && tar -C bert_jax -xzf bert_jax.tar.gz && bash bert_jax/launch/worker.sh install tpu'
}

start() {
  set_meeting
  on all "bash bert_jax/launch/worker.sh start -- $(quoted "${COMMAND[@]}" "${MEETING[@]}" --distributed=auto)"
}

delete() {
  local kind=("${tpu_vm[@]}") field=state flags=(--quiet)
  if "$queued"; then
    kind=("${queue[@]}") field=state.state flags=(--force --quiet)
  fi
  ask "${kind[@]}" describe "$name" "${where[@]}" --format="value($field)" || return
  if [[ -z "$state" ]]; then
    say "$name is not there"
    return
  fi
  run "${kind[@]}" delete "$name" "${where[@]}" "${flags[@]}"
}

begin() {
  create && install && start
}

# Sets $answer to what the supervisors on the workers say, a line each; returns 1 where not all of them answer.
ask_workers() {
  answer=""
  answer="$(on all 'bash bert_jax/launch/worker.sh status || echo none' 2>"$scratch/errors")"
}

# Sets $status to what the supervisors on the workers say, of all of them what matters most: a failure; that one has
# no run (none), or has one no more although the others wait for it (lost); running; exit 0. Or unknown, where not
# all of them answer.
ask_status() {
  local answer
  status=unknown
  ask_workers || return 0
  # Stopped by SIGTERM: told to, or because the worker was restarted.
  answer="$(sed -E 's/^exit (3|143)$/lost/' <<<"$answer")"
  status="$(grep -Em1 '^exit [1-9]' <<<"$answer" || grep -xm1 none <<<"$answer" || grep -xm1 lost <<<"$answer" ||
    grep -xm1 running <<<"$answer" || grep -xm1 'exit 0' <<<"$answer" || echo unknown)"
}

# Stops the run and returns when it has ended on all workers: the machine must not be deleted while the run saves.
stop() {
  local answer failure began=$SECONDS pause=$((10#$poll_seconds < 10 ? 10#$poll_seconds : 10))
  on all 'bash bert_jax/launch/worker.sh stop' || return
  if "$dry_run"; then
    echo "# again until no worker is running:"
    on all 'bash bert_jax/launch/worker.sh status || echo none'
    return
  fi
  while true; do
    if ! ask_workers || ! grep -qxE 'none|lost|running|exit [0-9]+' <<<"$answer"; then
      say "not all workers answer: $(tail -n1 "$scratch/errors")"
    elif grep -qx running <<<"$answer"; then
      say "the run has not ended yet"
    else
      break
    fi
    if ((SECONDS - began >= 10#$stop_seconds)); then
      say "the run may still be running after $stop_seconds s: read $PROGRAM logs, and stop it again before you delete $name"
      return 1
    fi
    sleep "$pause"
  done
  # 3 and 143 are the codes of a run that SIGTERM has stopped.
  if failure="$(grep -xE 'exit [0-9]+' <<<"$answer" | grep -vxEm1 'exit (0|3|143)')"; then
    say "the run failed with $failure: read $PROGRAM logs before you delete $name"
    return 1
  fi
  say "no worker is running"
}

# Until the run is done. A preempted machine is deleted and created again. A failed creation is retried without limit if
# there is no capacity, not at all if the quota is too small, and otherwise up to five times in a row; so are workers
# that do not answer yet.
watch() {
  local failures=0 seen=false status code
  while true; do
    code=0
    if ! ask_state ""; then
      state="of unknown state"
      # A run that was seen goes on without us; one that was not may be on a machine that never answers.
      "$seen" || code=1
    fi
    case "$state" in
      READY)
        ask_status
        case "$status" in
          running) failures=0 seen=true ;;
          "exit 0")
            say "the run is done; delete the machine: $PROGRAM delete --name=$name --zone=$zone"
            return
            ;;
          none)
            # shellcheck disable=SC2015
            install && start || code=$?
            ;;
          lost) start || code=$? ;;
          exit*)
            say "the run failed with $status: read $PROGRAM logs; the machine is still there, and costs"
            return 1
            ;;
          *)
            say "$name is READY, and not all workers answer: $(tail -n1 "$scratch/errors")"
            "$seen" || code=1
            ;;
        esac
        ;;
      "")
        seen=false
        begin || code=$?
        ;;
      PREEMPTED | TERMINATED | STOPPED | SUSPENDED | FAILED)
        say "$name is $state: making it anew"
        seen=false
        # shellcheck disable=SC2015
        delete && begin || code=$?
        ;;
      *) say "$name is $state" ;;
    esac
    case "$code" in
      0) ;;
      4) say "no capacity" ;;
      5)
        say "the quota is too small for $accelerator_type in $zone: ask for more, or for a smaller slice (docs/cloud.md); giving up"
        return 1
        ;;
      *) failures=$((failures + 1)) ;;
    esac
    if ((failures == 5)); then
      say "$failures attempts in a row failed: giving up"
      return 1
    fi
    sleep "$poll_seconds"
  done
}

case "$verb" in
  create) create ;;
  install) install ;;
  run) start ;;
  stop) stop ;;
  logs) on "$worker" 'tail -n +1 -F bert_jax/run.log' ;;
  delete)
    supposed=READY
    delete
    ;;
  watch)
    if "$dry_run"; then
      begin
      echo "# each time that it was preempted:"
      supposed=PREEMPTED
      delete
      begin
    else
      watch
    fi
    ;;
esac
