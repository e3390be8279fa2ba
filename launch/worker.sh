#!/usr/bin/env bash
USAGE="What tpu_vm.sh has done on each worker, in the checkout that this script lies in.

  launch/worker.sh install EXTRA     .venv with the versions of requirements.lock; EXTRA: tpu, cuda or cpu
  launch/worker.sh start -- COMMAND  in the background under restart.sh; its output goes to run.log
  launch/worker.sh status            'running', 'exit CODE', 'lost' (killed, or the machine was restarted), 'none'
  launch/worker.sh stop              SIGTERM: the run saves and ends

  --dry_run    print the commands and run nothing"
# shellcheck source=launch/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
parse "" "" "" -- "$@"
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# Sets $state to running, exit, lost or none, and $value to the process or the exit code.
read_status() {
  state=none value=""
  [[ ! -f run.status ]] || read -r state value <run.status
  if [[ "$state" == running ]] && ! kill -0 "$value" 2>/dev/null; then
    state=lost value=""
  fi
}

case "${WORDS[0]:-}" in
  install)
    extra="${WORDS[1]:-}"
    is_one_of "$extra" "tpu cuda cpu" || die "install ${extra:-}: expected tpu, cuda or cpu"
    # The images of TPU VMs have an older Python than this package needs; uv brings its own.
    if ! type -P uv >/dev/null && [[ ! -x "$HOME/.local/bin/uv" ]]; then
      run env PIP_BREAK_SYSTEM_PACKAGES=1 python3 -m pip install --user --quiet uv
    fi
    PATH="$PATH:$HOME/.local/bin"
    [[ -x .venv/bin/python ]] || run uv venv --quiet --python=3.11 .venv
    run uv pip install --quiet --python=.venv --constraints=requirements.lock --editable ".[$extra,gcs,all]"
    ;;
  start)
    need_command
    read_status
    if [[ "$state" == running ]]; then
      say "already running, as process $value"
      exit
    fi
    # In a session of its own it outlives the connection that started it.
    start=(env "PATH=$PWD/.venv/bin:$PATH" setsid nohup bash launch/restart.sh --status_file=run.status --)
    if "$dry_run"; then
      printf '%s >>run.log 2>&1 </dev/null &\n' "$(quoted "${start[@]}" "${COMMAND[@]}")"
      exit
    fi
    rm -f run.status
    "${start[@]}" "${COMMAND[@]}" >>run.log 2>&1 </dev/null &
    say "started; the output goes to $PWD/run.log"
    ;;
  status)
    read_status
    [[ "$state" != running ]] || value=""
    echo "$state${value:+ $value}"
    ;;
  stop)
    read_status
    if [[ "$state" == running ]]; then
      run kill -TERM "$value"
    else
      say "nothing is running"
    fi
    ;;
  *) die "${WORDS[0]:-no command}: expected install, start, status or stop" ;;
esac
