# shellcheck shell=bash
# What the scripts of this folder share.
#
# A script sets USAGE and its flags as variables with their defaults, then calls `parse "FLAG ..." -- "$@"`, which sets
# $FLAG for --FLAG=VALUE (or to true for --FLAG), the array COMMAND to what comes after `--`, and $VERB to the other word.
# shellcheck disable=SC2034
set -euo pipefail

PROGRAM="${0##*/}"

say() { printf '%s: %s\n' "$PROGRAM" "$*" >&2; }

# A mistake of the user: one line, exit code 2.
die() {
  say "error: $*"
  exit 2
}

parse() {
  local _flags=" ${1//$'\n'/ } " _arg _name _value
  shift 2
  COMMAND=() VERB=""
  while (($#)); do
    _arg="$1"
    shift
    case "$_arg" in
      --)
        COMMAND=("$@")
        return
        ;;
      -h | --help)
        printf '%s\n' "$USAGE"
        exit 0
        ;;
      --*)
        _name="${_arg#--}" _name="${_name%%=*}" _value=true
        [[ "$_arg" != *=* ]] || _value="${_arg#*=}"
        [[ "$_flags" == *" $_name "* ]] || die "unknown flag $_arg; --help lists the flags"
        printf -v "$_name" %s "$_value"
        ;;
      *)
        [[ -z "$VERB" ]] || die "unexpected argument $_arg; flags are --name=value, and the command comes after --"
        VERB="$_arg"
        ;;
    esac
  done
}

# Dies unless each of these flags has a value.
need() {
  local _name
  for _name in "$@"; do
    [[ -n "${!_name}" ]] || die "--$_name=VALUE is missing"
  done
}

need_command() {
  ((${#COMMAND[@]})) || die "expected a command after --, such as -- bert-jax pretrain --config=..."
}
