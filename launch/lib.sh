# shellcheck shell=bash
# What the scripts of this folder share: their flags and messages, and commands that are run or only shown.
#
# A script sets USAGE, then calls `parse FLAGS LISTS SWITCHES -- "$@"`; each is a space-separated list of names:
#   FLAGS     --name=value, into the variable $name
#   LISTS     --name=value, any number of times, into the array name
#   SWITCHES  --name or --name=true|false, into $name as true or false
# What comes after `--` goes into the array COMMAND, other words into the array WORDS.
# shellcheck disable=SC2034

if ((BASH_VERSINFO[0] < 4 || (BASH_VERSINFO[0] == 4 && BASH_VERSINFO[1] < 4))); then
  echo "${0##*/}: error: bash $BASH_VERSION is too old; 4.4 or newer is needed (macOS: brew install bash)" >&2
  exit 2
fi
set -euo pipefail

PROGRAM="${0##*/}"
dry_run=false

say() { printf '%s: %s\n' "$PROGRAM" "$*" >&2; }

# A mistake of the user's: one line, exit code 2.
die() {
  local message="$*"
  say "error: ${message//$'\n'/ }"
  exit 2
}

# The words, quoted so that a shell reads the same words again.
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

# run, for a command that may fail without harm (a question, a deletion of what may not be there).
try() {
  if "$dry_run"; then
    printf '%s || true\n' "$(quoted "$@")"
  else
    "$@" || true
  fi
}

is_one_of() {
  local word
  for word in $2; do
    [[ "$word" != "$1" ]] || return 0
  done
  return 1
}

# Its own variables have an underscore, as a flag may be called anything else.
parse() {
  local _flags="$1" _lists="$2" _switches="$3 dry_run" _arg _name _value
  shift 4
  COMMAND=() WORDS=()
  while (($#)); do
    _arg="$1"
    shift
    if [[ "$_arg" == -- ]]; then
      COMMAND=("$@")
      return
    elif [[ "$_arg" == -h || "$_arg" == --help ]]; then
      printf '%s\n' "$USAGE"
      exit 0
    elif [[ "$_arg" != -* ]]; then
      WORDS+=("$_arg")
      continue
    fi
    _name="${_arg#--}"
    _name="${_name%%=*}"
    if is_one_of "$_name" "$_switches"; then
      _value="${_arg#"--$_name"}"
      _value="${_value#=}"
      case "${_value:-true}" in
        true | false) printf -v "$_name" %s "${_value:-true}" ;;
        *) die "--$_name=$_value: expected true or false" ;;
      esac
    elif ! is_one_of "$_name" "$_flags $_lists"; then
      die "$_arg is not a flag of it; --help lists them, and the command to run comes after --"
    else
      if [[ "$_arg" == *=* ]]; then
        _value="${_arg#*=}"
      elif (($#)); then
        _value="$1"
        shift
      else
        die "--$_name needs a value: --$_name=VALUE"
      fi
      if is_one_of "$_name" "$_lists"; then
        local -n _list="$_name"
        _list+=("$_value")
        unset -n _list
      else
        printf -v "$_name" %s "$_value"
      fi
    fi
  done
}

# Dies unless each of these flags has a value.
need() {
  local _name
  for _name in "$@"; do
    [[ -n "${!_name}" ]] || die "--$_name is missing: --$_name=VALUE; --help lists the flags"
  done
}

# Dies unless each of these flags is a whole number of at least 1.
need_counts() {
  local _name
  for _name in "$@"; do
    [[ "${!_name}" =~ ^[1-9][0-9]{0,8}$ ]] || die "--$_name=${!_name}: expected a whole number of at least 1"
  done
}

# Sets MEETING to a flag that gives the hosts an hour to meet, unless the command has one. They come at different
# times, after a preemption too, and one that has waited in vain ends all of them.
set_meeting() {
  local word
  MEETING=(--initialization_timeout=3600)
  for word in "${COMMAND[@]}"; do
    [[ "$word" != --initialization_timeout* ]] || MEETING=()
  done
}

need_command() {
  ((${#COMMAND[@]})) || die "what to run? give the command after --, as in: -- bert-jax pretrain --config=..."
}

# Dies unless each of these programs is installed; a dry run needs none of them.
need_programs() {
  local _name
  ! "$dry_run" || return 0
  for _name in "$@"; do
    command -v "$_name" >/dev/null ||
      die "$_name is not installed, or not on the PATH; install it, or see the commands with --dry_run"
  done
}

no_words() {
  ((${#WORDS[@]} == 0)) || die "${WORDS[0]}: not expected; flags are --name=value, and the command comes after --"
}
