#!/usr/bin/env bash
USAGE="Pre-training on a GKE cluster with TPU or GPU node pools, as a JobSet (0.10 or newer), through kubectl.

  launch/jobset.sh COMMAND --name=NAME [flags] [-- bert-jax pretrain --config=... --workdir=gs://...]

  render   print the manifest
  run      apply it
  logs     follow the log of the first process
  delete   delete the JobSet; a work directory on gs:// stays

The command is started in every pod. A run that was preempted is started again, without end; one that crashed,
--max_restarts times; one that ends with 2, a mistake, not at all.

  --image=IMAGE                  launch/Dockerfile, pushed to a registry
  --accelerator=TYPE             the label of the nodes: tpu-v5-lite-podslice, tpu-v6e-slice, nvidia-h100-80gb, ...
  --topology=4x4                 of a TPU slice
  --chips_per_host=4             TPU chips of a node
  --slices=1                     TPU slices
  --nodes=1                      GPU nodes
  --gpus_per_node=8
  --max_restarts=20
  --service_account=default      the Kubernetes one that may read and write the bucket
  --namespace=default"
# shellcheck source=launch/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
name="" image="" accelerator="" topology=4x4 chips_per_host=4 slices=1 nodes=1 gpus_per_node=8 max_restarts=20
service_account=default namespace=default
parse "name image accelerator topology chips_per_host slices nodes gpus_per_node max_restarts service_account namespace" -- "$@"
need name
# The names of its pods add to it, and have 63 characters at most.
[[ "$name" =~ ^[a-z]([-a-z0-9]{0,38}[a-z0-9])?$ ]] ||
  die "--name=$name: expected lower-case letters, digits and hyphens, a letter first, 40 at most"
kubectl=(kubectl --namespace="$namespace")

# Prints a word as a JSON string, which YAML reads too.
json() {
  local text="$1"
  text="${text//\\/\\\\}" text="${text//\"/\\\"}" text="${text//$'\n'/\\n}" text="${text//$'\t'/\\t}"
  printf '"%s"' "$text"
}

render() {
  local hosts resource node_labels annotations="" extra volumes="" word words=() product=1
  need_command
  need image accelerator
  need_counts max_restarts
  # The hosts come at different times, and one that has waited in vain ends all of them.
  COMMAND+=(--initialization_timeout=3600)
  if [[ "$accelerator" == tpu* ]]; then
    need_counts slices chips_per_host
    [[ "$topology" =~ ^[1-9][0-9]{0,2}(x[1-9][0-9]{0,2}){1,2}$ ]] || die "--topology=$topology: expected 4x4 or 2x2x2"
    for word in ${topology//x/ }; do
      product=$((product * word))
    done
    ((product % chips_per_host == 0)) || die "--topology=$topology: hosts of $chips_per_host chips do not make it up"
    hosts=$((product / chips_per_host)) resource="google.com/tpu: $chips_per_host"
    node_labels="cloud.google.com/gke-tpu-accelerator: $(json "$accelerator"), cloud.google.com/gke-tpu-topology: $topology"
    # A node pool, which is a slice, for each job. The device files of TPUs belong to root.
    annotations=", annotations: {alpha.jobset.sigs.k8s.io/exclusive-topology: cloud.google.com/gke-nodepool}"
    extra="securityContext: {privileged: true, runAsUser: 0}"
  else
    need_counts nodes gpus_per_node
    slices=1 hosts="$nodes" resource="nvidia.com/gpu: $gpus_per_node"
    node_labels="cloud.google.com/gke-accelerator: $(json "$accelerator")"
    extra="securityContext: {runAsUser: 1000}"
    # NCCL's shared memory outgrows the 64 MB of a container.
    volumes=", {name: shm, emptyDir: {medium: Memory}}"
  fi
  # Kubernetes puts variables into a command where it says $(NAME), and makes $$ a $.
  for word in "${COMMAND[@]}"; do
    words+=("$(json "${word//\$/\$\$}")")
  done
  if [[ "$accelerator" != tpu* ]]; then
    # shellcheck disable=SC2016
    words+=("$(json "--coordinator_address=$name-worker-0-0.$name:8476")" "$(json "--num_processes=$nodes")"
      "$(json '--process_id=$(JOB_COMPLETION_INDEX)')")
  fi
  local IFS=,
  cat <<YAML
apiVersion: jobset.x-k8s.io/v1alpha2  # 0.10 or newer, for onJobFailureMessagePatterns
kind: JobSet
metadata: {name: $(json "$name")$annotations}
spec:
  failurePolicy:
    maxRestarts: $max_restarts  # after crashes; preemptions are not counted
    restartStrategy: BlockingRecreate  # never two runs in one work directory
    rules:
      - name: preempted
        action: RestartJobSetAndIgnoreMaxRestarts
        onJobFailureReasons: [PodFailurePolicy]
        onJobFailureMessagePatterns: ["matching FailJob rule at index (0|1)$"]
      - {name: mistake, action: FailJobSet, onJobFailureReasons: [PodFailurePolicy]}
  replicatedJobs:
    - name: worker
      replicas: $slices
      template:
        spec:
          completionMode: Indexed
          parallelism: $hosts
          completions: $hosts
          backoffLimit: 0
          podFailurePolicy:
            rules:  # stopped on purpose; the node was preempted or lost; a mistake of the user
              - {action: FailJob, onExitCodes: {containerName: bert-jax, operator: In, values: [3]}}
              - {action: FailJob, onPodConditions: [{type: DisruptionTarget, status: "True"}]}
              - {action: FailJob, onExitCodes: {containerName: bert-jax, operator: In, values: [2]}}
          template:
            spec:
              restartPolicy: Never
              serviceAccountName: $(json "$service_account")
              terminationGracePeriodSeconds: 120  # to save in; spot nodes may give less
              nodeSelector: {$node_labels}
              containers:
                - name: bert-jax
                  image: $(json "$image")
                  command: [${words[*]}]
                  env: [{name: BERT_JAX_RECORD_CACHE, value: /cache/records}]
                  $extra
                  resources: {requests: {$resource}, limits: {$resource}}
                  volumeMounts: [{name: cache, mountPath: /cache}${volumes:+, {name: shm, mountPath: /dev/shm\}}]
              securityContext: {fsGroup: 1000}  # that of the image's user, who writes to the cache
              volumes: [{name: cache, emptyDir: {}}$volumes]
YAML
}

case "$VERB" in
  render) render ;;
  run)
    manifest="$(render)"
    "${kubectl[@]}" create --filename=- <<<"$manifest"
    ;;
  logs)
    labels="jobset.sigs.k8s.io/jobset-name=$name,jobset.sigs.k8s.io/job-index=0,batch.kubernetes.io/job-completion-index=0"
    "${kubectl[@]}" logs --follow --tail=-1 --container=bert-jax --selector="$labels"
    ;;
  delete) "${kubectl[@]}" delete jobset "$name" --ignore-not-found ;;
  *) die "${VERB:-no command}: expected render, run, logs or delete" ;;
esac
