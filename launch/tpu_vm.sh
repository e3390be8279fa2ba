#!/usr/bin/env bash
USAGE="Pre-training on a Cloud TPU VM or a pod slice of them, through gcloud.

  launch/tpu_vm.sh COMMAND --name=NAME --zone=ZONE [flags] [-- bert-jax pretrain --config=... --workdir=gs://...]

  create    make it, and wait until it is ready
  install   copy this checkout to every worker, and install it there
  run       start the command after -- on every worker, under restart.sh
  logs      follow the log of worker 0, or of --worker
  stop      stop the run, which saves a checkpoint first, and wait until no worker is running
  watch     all of it until the run is done: create, install, run; and again when the machine was preempted
  delete    delete it; a work directory on gs:// stays

Each step may be repeated: what exists is kept.

  --accelerator_type=v5litepod-16
  --runtime_version=VERSION       version of the image; by default, it depends on the accelerator type
  --spot                          use cheaper capacity that may be preempted
  --queued                        wait in the queue for capacity (queued resources)
  --service_account=EMAIL         service account of the machines, for access to the bucket
  --create_flags=FLAGS            other flags of 'gcloud compute tpus tpu-vm create', separated by spaces
  --ssh_flags=FLAGS               other flags of 'gcloud compute tpus tpu-vm ssh' and 'scp', separated by spaces
  --worker=0                      worker whose log to follow
  --poll_seconds=60               seconds between queries of the state
  --dry_run                       print the commands for a new machine, and run none"
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
# shellcheck source=launch/lib.sh
source "$here/lib.sh"
# Prints the words so that a shell reads the same words again.
quoted() {
  local line
  printf -v line ' %q' "$@"
  printf '%s' "${line:1}"
}

# Runs a command; with --dry_run prints it instead.
run() {
  if "$dry_run"; then
    printf '%s\n' "$(quoted "$@")"
  else
    "$@"
  fi
}

dry_run=false name="" zone="" accelerator_type=v5litepod-16 runtime_version="" service_account="" worker=0
poll_seconds=60 spot=false queued=false create_flags="" ssh_flags=""
parse "dry_run name zone accelerator_type runtime_version service_account create_flags ssh_flags worker poll_seconds spot
 queued" -- "$@"
read -ra create_flags_list <<<"$create_flags"
read -ra ssh_flags_list <<<"$ssh_flags"
need name zone accelerator_type
[[ "$accelerator_type" != v5e-* ]] || accelerator_type="v5litepod-${accelerator_type#v5e-}" # Cloud TPU's name of it
if [[ -z "$runtime_version" ]]; then
  case "$accelerator_type" in
    v4-*) runtime_version=tpu-ubuntu2204-base ;;
    v5litepod-*) runtime_version=v2-alpha-tpuv5-lite ;;
    v5p-*) runtime_version=v2-alpha-tpuv5 ;;
    v6e-*) runtime_version=v2-alpha-tpuv6e ;;
    *) die "--accelerator_type=$accelerator_type: expected v4, v5e, v5p or v6e, or --runtime_version as well" ;;
  esac
fi
where=(--zone="$zone")
tpu_vm=(gcloud compute tpus tpu-vm)
queue=(gcloud compute tpus queued-resources)

# Sets $state to the state of the machine, or of the request for it while that waits; "" where there is none. Returns 1
# if gcloud does not answer, as then it is not known what is there.
ask_state() {
  local errors
  state=""
  ! "$dry_run" || return 0
  errors="$(mktemp)"
  if "$queued"; then
    state="$("${queue[@]}" describe "$name" "${where[@]}" --format='value(state.state)' 2>"$errors")" || true
  fi
  if ! "$queued" || [[ "$state" == ACTIVE ]]; then
    state="$("${tpu_vm[@]}" describe "$name" "${where[@]}" --format='value(state)' 2>"$errors")" || true
    # An active request whose machine has gone will not bring it back.
    [[ -n "$state" ]] || ! "$queued" || state=SUSPENDED
  fi
  if [[ -z "$state" ]] && ! grep -qiE 'not_?found|was not found' "$errors"; then
    say "no answer from gcloud: $(tr '\n' ' ' <"$errors")"
    rm "$errors"
    return 1
  fi
  rm "$errors"
}

create() {
  local flags=(--accelerator-type="$accelerator_type" --scopes=https://www.googleapis.com/auth/cloud-platform)
  ! "$spot" || flags+=(--spot)
  [[ -z "$service_account" ]] || flags+=(--service-account="$service_account")
  flags+=("${create_flags_list[@]}")
  ask_state || return
  if [[ -n "$state" ]]; then
    say "$name exists already: $state"
  elif "$queued"; then
    run "${queue[@]}" create "$name" "${where[@]}" --node-id="$name" --runtime-version="$runtime_version" "${flags[@]}" ||
      return
  else
    run "${tpu_vm[@]}" create "$name" "${where[@]}" --version="$runtime_version" "${flags[@]}" || return
  fi
  until "$dry_run"; do
    ask_state || return
    case "$state" in
      READY) return ;;
      "" | FAILED | SUSPEND* | PREEMPTED | TERMINATED | STOP* | DELETING)
        say "$name is ${state:-gone}; delete it and create it again"
        return 1
        ;;
    esac
    say "$name is $state; next query in $poll_seconds s"
    sleep "$poll_seconds"
  done
}

# on WORKERS SCRIPT: runs a line of shell on these workers.
on() {
  run "${tpu_vm[@]}" ssh "$name" "${where[@]}" --worker="$1" "${ssh_flags_list[@]}" --command="$2"
}

# The images of TPU VMs have an older Python than this package needs; uv brings its own.
# shellcheck disable=SC2016
INSTALL='mkdir -p bert_jax && tar -C bert_jax -xzf bert_jax.tar.gz && cd bert_jax && export PATH="$PATH:$HOME/.local/bin" &&
{ command -v uv >/dev/null || PIP_BREAK_SYSTEM_PACKAGES=1 python3 -m pip install --user --quiet uv; } &&
{ [ -x .venv/bin/python ] || uv venv --quiet --python=3.11 .venv; } &&
uv pip install --quiet --python=.venv --constraints=requirements.lock --editable ".[tpu,gcs,all]"'
# What a worker says of its run: running, exit CODE, lost (killed, or the machine was restarted), or none.
# shellcheck disable=SC2016
STATUS='cd bert_jax 2>/dev/null && read -r state value <run.status 2>/dev/null || { echo none; exit; }
if [ "$state" = running ] && ! kill -0 "$value" 2>/dev/null; then echo lost; elif [ "$state" = running ]; then echo running
else echo "$state $value"; fi'

# shellcheck disable=SC2016
STOP='[ ! -f bert_jax/run.status ] || { read -r state value <bert_jax/run.status
[ "$state" != running ] || kill -TERM "$value"; }'

install() {
  local bundle
  bundle="${TMPDIR:-/tmp}/bert_jax-$name.tar.gz"
  run tar -C "$here/.." --exclude=__pycache__ -czf "$bundle" \
    setup.py pyproject.toml README.md LICENSE requirements.lock bert_jax data_pipelines configs launch || return
  run "${tpu_vm[@]}" scp "$bundle" "$name:bert_jax.tar.gz" "${where[@]}" --worker=all "${ssh_flags_list[@]}" || return
  on all "$INSTALL"
}

start() {
  # The hosts start at different times, also after a preemption, and a host that times out ends all of them. In a
  # separate session, the run survives the end of the connection.
  on all "cd bert_jax && rm -f run.status && PATH=\"\$PWD/.venv/bin:\$PATH\" setsid nohup bash launch/restart.sh \
--status_file=run.status -- $(quoted "${COMMAND[@]}" --initialization_timeout=3600) >>run.log 2>&1 </dev/null &"
}

# Sets $answer to what the workers say, a line each, and $status to what matters most: a failure; none or lost, where
# others wait for one; running; exit 0; unknown.
ask_status() {
  answer="$(on all "$STATUS" 2>/dev/null | sed -E 's/^exit (3|143)$/lost/')" || answer=""
  for status in 'exit [1-9][0-9]*' none lost running 'exit 0'; do
    ! grep -qxE "$status" <<<"$answer" || {
      status="$(grep -xEm1 "$status" <<<"$answer")"
      return
    }
  done
  status=unknown
}

# Returns when the run has ended on all workers: the machine must not be deleted while the run saves.
stop() {
  on all "$STOP" || return
  until "$dry_run"; do
    ask_status
    [[ "$status" == unknown ]] || grep -qx running <<<"$answer" || break
    say "the run has not ended yet"
    sleep "$poll_seconds"
  done
}

delete() {
  ask_state || return
  if "$queued"; then
    run "${queue[@]}" delete "$name" "${where[@]}" --force --quiet
  elif "$dry_run" || [[ -n "$state" ]]; then
    run "${tpu_vm[@]}" delete "$name" "${where[@]}" --quiet
  fi
}

# Prints the call of this script that runs another command on the same machine.
again() {
  local flags=(--name="$name" --zone="$zone")
  ! "$queued" || flags+=(--queued)
  quoted "$0" "$1" "${flags[@]}"
}

# Until the run is done. A preempted machine is deleted and created again. A creation that fails, as where there is no
# capacity, is tried again without end; five other failures in a row end it.
watch() {
  local failures=0 code
  while ((failures < 5)); do
    code=0
    ask_state || code=1
    case "$code$state" in
      0READY)
        ask_status
        case "$status" in
          running) failures=0 ;;
          "exit 0")
            say "the run is done; delete the machine: $(again delete)"
            return
            ;;
          none) { install && start; } || code=$? ;;
          lost) start || code=$? ;;
          exit*)
            say "the run failed with $status; $(again logs) shows why; the machine still exists"
            return 1
            ;;
          *) say "not all workers answer" ;;
        esac
        ;;
      0) create || true ;;
      0PREEMPTED | 0TERMINATED | 0STOPPED | 0SUSPENDED | 0FAILED)
        say "$name is $state; creating it again"
        delete || code=$?
        ;;
      0*) say "$name is $state" ;;
    esac
    ((code == 0)) || failures=$((failures + 1))
    sleep "$poll_seconds"
  done
  say "$failures attempts in a row failed: giving up"
  return 1
}

case "$VERB" in
  create | install | stop | delete) "$VERB" ;;
  run | watch)
    need_command
    if [[ "$VERB" == run ]]; then start; elif "$dry_run"; then create && install && start; else watch; fi
    ;;
  logs) on "$worker" 'tail -n +1 -F bert_jax/run.log' ;;
  *) die "${VERB:-no command}: expected create, install, run, logs, stop, watch or delete" ;;
esac
