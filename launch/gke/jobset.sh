#!/usr/bin/env bash
USAGE="Pre-training on a GKE cluster with TPU or GPU node pools, as a JobSet (0.10 or newer), through kubectl.

  launch/gke/jobset.sh COMMAND --name=NAME [flags] [-- bert-jax pretrain --config=... --workdir=gs://...]

  render   print the manifest
  run      apply it
  logs     follow the log of the first process
  delete   delete the JobSet; a work directory on gs:// stays

The command is started in every pod: on TPUs with --distributed=auto, on GPUs with --coordinator_address,
--num_processes and --process_id. A run that was preempted is started again, without end; one that crashed,
--max_restarts times; one that ends with 2, a mistake, not at all.

  --image=IMAGE                  launch/docker/Dockerfile.tpu or .gpu, pushed to a registry
  --accelerator=TYPE             the label of the nodes: tpu-v5-lite-podslice, tpu-v6e-slice, nvidia-h100-80gb, ...
  --topology=4x4                 of a TPU slice
  --chips_per_host=4             TPU chips of a node
  --slices=1                     TPU slices
  --nodes=1                      GPU nodes
  --gpus_per_node=8
  --max_restarts=20
  --service_account=default      the Kubernetes one that may read and write the bucket
  --namespace=default
  --context=CONTEXT              kubectl's own by default
  --dry_run                      print the commands and run none"
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
# shellcheck source=launch/lib.sh
source "$here/../lib.sh"
name="" image="" accelerator="" topology=4x4 chips_per_host=4 slices=1 nodes=1 gpus_per_node=8 max_restarts=20
service_account=default namespace=default context=""
parse "name image accelerator topology chips_per_host slices nodes gpus_per_node max_restarts service_account
  namespace context" "" "" -- "$@"
verb="${WORDS[0]:-}"
is_one_of "${verb:-none}" "render run logs delete" || die "${verb:-no command}: expected render, run, logs or delete"
((${#WORDS[@]} == 1)) || die "${WORDS[1]}: not expected after $verb"
need name namespace
# The names of its pods add to it, and have 63 characters at most.
[[ "$name" =~ ^[a-z]([-a-z0-9]{0,38}[a-z0-9])?$ ]] ||
  die "--name=$name: expected lower-case letters, digits and hyphens, a letter first, 40 at most"

kubectl=(kubectl --namespace="$namespace")
[[ -z "$context" ]] || kubectl+=(--context="$context")

# A word as a JSON string, which YAML reads too.
json() {
  local text="$1" out="" i character
  for ((i = 0; i < ${#text}; i++)); do
    character="${text:i:1}"
    case "$character" in
      '"' | "\\") out+="\\$character" ;;
      [[:cntrl:]]) printf -v character '\\u%04x' "'$character" && out+="$character" ;;
      *) out+="$character" ;;
    esac
  done
  printf '"%s"' "$out"
}

# put NAME VALUE: into $manifest, everywhere.
put() {
  local rest="$manifest" marker="__$1__"
  manifest=""
  while [[ "$rest" == *"$marker"* ]]; do
    manifest+="${rest%%"$marker"*}$2"
    rest="${rest#*"$marker"}"
  done
  manifest+="$rest"
}

# Sets $manifest.
render() {
  local hosts chips word words=() product=1
  need_command
  need image accelerator service_account
  need_counts max_restarts
  # Kubernetes puts variables into a command where it says $(NAME), and makes $$ a $.
  set_meeting
  for word in "${COMMAND[@]}" "${MEETING[@]}"; do
    words+=("$(json "${word//\$/\$\$}")")
  done
  if [[ "$accelerator" == tpu* ]]; then
    need_counts slices chips_per_host
    [[ "$topology" =~ ^[1-9][0-9]{0,2}(x[1-9][0-9]{0,2}){1,2}$ ]] ||
      die "--topology=$topology: expected two or three numbers, as in 4x4 or 2x2x2"
    for word in ${topology//x/ }; do
      product=$((product * word))
    done
    ((product % chips_per_host == 0)) ||
      die "--topology=$topology has $product chips, which hosts of --chips_per_host=$chips_per_host do not make up"
    hosts=$((product / chips_per_host)) chips="$chips_per_host"
    words+=("$(json --distributed=auto)")
    manifest="$(<"$here/jobset-tpu.yaml")"
  else
    need_counts nodes gpus_per_node
    hosts="$nodes" chips="$gpus_per_node"
    # shellcheck disable=SC2016
    words+=("$(json "--coordinator_address=$name-worker-0-0.$name:8476")" "$(json "--num_processes=$nodes")"
      "$(json '--process_id=$(JOB_COMPLETION_INDEX)')")
    manifest="$(<"$here/jobset-gpu.yaml")"
  fi
  put NAME "$(json "$name")"
  put SLICES "$slices"
  put HOSTS "$hosts"
  put CHIPS "$chips"
  put MAX_RESTARTS "$max_restarts"
  put SERVICE_ACCOUNT "$(json "$service_account")"
  put ACCELERATOR "$(json "$accelerator")"
  put TOPOLOGY "$(json "$topology")"
  put IMAGE "$(json "$image")"
  local IFS=,
  put COMMAND "[${words[*]}]"
}

start() {
  local there
  render
  if "$dry_run"; then
    run "${kubectl[@]}" get jobset "$name" --ignore-not-found --output=name
    printf "%s <<'END OF MANIFEST'\n%s\nEND OF MANIFEST\n" "$(quoted "${kubectl[@]}" apply --filename=-)" "$manifest"
    return
  fi
  there="$("${kubectl[@]}" get jobset "$name" --ignore-not-found --output=name)"
  if [[ -n "$there" ]]; then
    say "$name is there already; to start another run of this name, delete it first"
    return
  fi
  "${kubectl[@]}" apply --filename=- <<<"$manifest"
}

[[ "$verb" == render ]] || need_programs kubectl
case "$verb" in
  render)
    render
    printf '%s\n' "$manifest"
    ;;
  run) start ;;
  logs)
    labels="jobset.sigs.k8s.io/jobset-name=$name,jobset.sigs.k8s.io/job-index=0"
    run "${kubectl[@]}" logs --follow --tail=-1 --container=bert-jax \
      --selector="$labels,batch.kubernetes.io/job-completion-index=0"
    ;;
  delete) run "${kubectl[@]}" delete jobset "$name" --ignore-not-found ;;
esac
