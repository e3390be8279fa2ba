#!/usr/bin/env bash
USAGE="Pre-training on the GPUs of a Slurm cluster.

  launch/slurm.sh COMMAND --name=NAME [flags] [-- bert-jax pretrain --config=... --workdir=DIR]

  run      submit the command after --; it gets --coordinator_address, --num_processes and --process_id
  logs     follow the log
  delete   cancel it

Ahead of the time limit the run saves, and the job goes back to the queue and goes on from there, as it does after
a preemption, the loss of a node, or a crash. A mistake (exit code 2) ends it. The work directory, the records and
bert-jax are where every node sees them.

  --nodes=1
  --gpus_per_node=8        0: the CPUs
  --process_per=node       or gpu: one process a node, or one a GPU
  --cpus_per_task          CPU cores of each process; by default what the cluster gives, often a single one
  --time=24:00:00          of one start, not of the run
  --partition, --account   the cluster's own by default
  --log_dir=.              the log is NAME.log there
  --max_restarts=20        starts after the first one; a crash after them ends the job, a preemption does not
  --save_seconds=120       ahead of the time limit SIGTERM comes (Slurm may send it a minute earlier)
  --sbatch_flag=FLAG       any other flag of sbatch, such as --sbatch_flag=--exclusive; may be repeated
  --dry_run                print the commands and run none"
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
# shellcheck source=launch/lib.sh
source "$here/lib.sh"
name="" nodes=1 gpus_per_node=8 process_per=node time=24:00:00 partition="" account="" log_dir=. save_seconds=120
cpus_per_task="" max_restarts=20 sbatch_flag=()
parse "name nodes gpus_per_node process_per cpus_per_task time partition account log_dir save_seconds max_restarts" \
  sbatch_flag "" -- "$@"
verb="${WORDS[0]:-}"
is_one_of "${verb:-none}" "run logs delete" || die "${verb:-no command}: expected run, logs or delete"
((${#WORDS[@]} == 1)) || die "${WORDS[1]}: not expected after $verb"
need name time log_dir
need_counts nodes save_seconds max_restarts
[[ "$name" =~ ^[A-Za-z0-9_.][A-Za-z0-9_.-]{0,99}$ ]] ||
  die "--name=$name: expected letters, digits, '_', '.' and '-', 100 at most"
[[ "$gpus_per_node" =~ ^(0|[1-9][0-9]{0,2})$ ]] || die "--gpus_per_node=$gpus_per_node: expected a whole number"
is_one_of "$process_per" "node gpu" || die "--process_per=$process_per: expected node or gpu"
[[ "$process_per" == node ]] || need_counts gpus_per_node
[[ -z "$cpus_per_task" ]] || need_counts cpus_per_task
log="$log_dir/$name.log"
[[ "$log" != *%* ]] || die "--log_dir=$log_dir: Slurm would replace the %; choose another directory"

submit() {
  local job tasks=1 flags
  if "$dry_run"; then
    run squeue --noheader --user="$(id -un)" --name="$name" --format=%A
  else
    job="$(squeue --noheader --user="$(id -un)" --name="$name" --format=%A)"
    if [[ -n "$job" ]]; then
      say "$name is there already: job ${job//$'\n'/ }"
      return
    fi
  fi
  flags=(--job-name="$name" --nodes="$nodes" --time="$time" --requeue --signal="TERM@$save_seconds"
    --output="$log" --open-mode=append)
  if ((gpus_per_node)); then
    flags+=(--gpus-per-node="$gpus_per_node")
  fi
  if [[ "$process_per" == gpu ]]; then
    tasks="$gpus_per_node"
  fi
  flags+=(--ntasks-per-node="$tasks" --export="ALL,PROCESS_PER=$process_per,MAX_RESTARTS=$max_restarts")
  [[ -z "$cpus_per_task" ]] || flags+=(--cpus-per-task="$cpus_per_task")
  [[ -z "$partition" ]] || flags+=(--partition="$partition")
  [[ -z "$account" ]] || flags+=(--account="$account")
  run mkdir -p "$log_dir"
  run sbatch "${flags[@]}" "${sbatch_flag[@]}" "$here/slurm.sbatch" "${COMMAND[@]}"
}

case "$verb" in
  run)
    need_command
    need_programs squeue sbatch
    submit
    ;;
  logs) run tail -n +1 -F "$log" ;;
  delete)
    need_programs scancel
    run scancel --user="$(id -un)" --name="$name"
    ;;
esac
