#!/usr/bin/env bash
USAGE="Pre-training on a cluster that xpk made ('xpk cluster create'; pip install xpk), with its queue and priorities.

  launch/gke/xpk.sh COMMAND --name=NAME --cluster=CLUSTER [flags] [-- bert-jax pretrain --config=... --workdir=gs://...]

  run      create the workload; the command gets --distributed=auto
  logs     follow the log of the first process
  delete   delete the workload; a work directory on gs:// stays

  --project, --zone          gcloud's own by default
  --tpu_type=v5litepod-16    of a slice
  --slices=1
  --image=IMAGE              launch/docker/Dockerfile.tpu, built with --build-arg RUN_AS=root, pushed to a registry
  --max_restarts=100         preemptions and crashes; a mistake (exit code 2) ends it at once
  --xpk_flag=FLAG            any other flag of 'xpk workload create', such as --xpk_flag=--priority=high; may be
                             repeated
  --dry_run                  print the commands and run none"
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
# shellcheck source=launch/lib.sh
source "$here/../lib.sh"
name="" cluster="" project="" zone="" tpu_type=v5litepod-16 slices=1 image="" max_restarts=100 xpk_flag=()
parse "name cluster project zone tpu_type slices image max_restarts" xpk_flag "" -- "$@"
verb="${WORDS[0]:-}"
is_one_of "${verb:-none}" "run logs delete" || die "${verb:-no command}: expected run, logs or delete"
((${#WORDS[@]} == 1)) || die "${WORDS[1]}: not expected after $verb"
need name cluster
[[ "$name" =~ ^[a-z]([-a-z0-9]{0,38}[a-z0-9])?$ ]] ||
  die "--name=$name: expected lower-case letters, digits and hyphens, a letter first, 40 at most"

where=(--cluster="$cluster")
[[ -z "$project" ]] || where+=(--project="$project")
[[ -z "$zone" ]] || where+=(--zone="$zone")

list=(xpk workload list "${where[@]}" --filter-by-job="^$name\$")

# Whether there is a workload of this name; ends where xpk fails.
is_there() {
  local there
  there="$("${list[@]}")" || exit
  grep -q "^${name}[[:space:]]" <<<"$there"
}

start() {
  need image
  need_counts slices max_restarts
  need_command
  need_programs xpk
  if "$dry_run"; then
    run "${list[@]}"
  elif is_there; then
    say "$name is there already; to start another run of this name, delete it first"
    return
  fi
  set_meeting
  # xpk starts again after the exit codes that are named alone: stopped on purpose, failed, aborted, killed, crashed.
  # With exec, its SIGTERM reaches the command and not a shell.
  run xpk workload create "${where[@]}" --workload="$name" --tpu-type="$tpu_type" --num-slices="$slices" \
    --docker-image="$image" --max-restarts="$max_restarts" --restart-on-exit-codes=1,3,134,137,139,143 \
    --termination-grace-period-seconds=120 "${xpk_flag[@]}" \
    --command="exec $(quoted "${COMMAND[@]}" "${MEETING[@]}" --distributed=auto)"
}

case "$verb" in
  run) start ;;
  logs)
    need_programs kubectl
    labels="jobset.sigs.k8s.io/jobset-name=$name,jobset.sigs.k8s.io/job-index=0"
    run kubectl logs --follow --tail=-1 --container=jax-tpu \
      --selector="$labels,batch.kubernetes.io/job-completion-index=0"
    ;;
  delete)
    need_programs xpk
    if "$dry_run"; then
      run "${list[@]}"
    elif ! is_there; then
      say "$name is not there"
      exit
    fi
    run xpk workload delete "${where[@]}" --workload="$name" --force
    ;;
esac
