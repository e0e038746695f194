#!/bin/bash
#SBATCH --job-name=paper/base-1
#SBATCH --comment=mbt:paper:0123456789ab
#SBATCH --time=24:00:00
#SBATCH --mem=960G
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=96
#SBATCH --gpus-per-node=8
#SBATCH --output=/data/runs/s/submissions/t/logs/base-1-%A_%a.log
#SBATCH --open-mode=append
#SBATCH --signal=B:USR1@180
#SBATCH --requeue
#SBATCH --array=1-8%8
set -euo pipefail

# One job of a study, written by `mbt submit`. It runs the command below, forwards the time-limit
# signal to it, and requeues itself as long as it makes progress.
job=base-1
workdir=/data
record=/data/runs/s/submissions/t
cache=/data/cache
first_tmpdir=''
max_idle_requeues=2
shards=8 before=0
folders=(
  /data/runs/paper/base/model=m
)
command=(
  /opt/venv/bin/mbt
  run
  /data/runs/s/submissions/t/manifest.toml
  --only
  base/model=m
)
# names the versions that compiled kernels depend on
packages='
import importlib.metadata as metadata
found = {each.name: each.version for each in metadata.distributions()}
print("-".join(f"{n}{found[n]}" for n in ("vllm", "torch", "triton") if n in found) or "any")
'

task="${SLURM_ARRAY_TASK_ID:-}"
events="$record/events/$job${task:+-$task}"
mkdir -p -- "$record/events"
say() { printf '%(%Y-%m-%dT%H:%M:%S%z)T\t%s\n' -1 "$*" | tee -a -- "$events.log" >&2; }
# shellcheck disable=SC2317  # called where a preset has commands
gave_up() { say "a command of the preset failed: $*"; exit 1; }

# A hash of the job's files: it changes with every reply and every checkpoint.
progress() {
  find "${folders[@]}" -type f ! -path '*/logs/*' ! -name 'lock*' ! -name 'failure.json' \
    -printf '%p %s\n' 2>/dev/null | sort | sha256sum | cut -c1-64 || true
}

# Return to the queue, unless that happened too often without progress.
requeue() {
  local why=$1 before='' idle=0 now
  now=$(progress)
  if [ -s "$events.requeues" ]; then read -r idle before < "$events.requeues"; fi
  if [ "$now" = "$before" ]; then idle=$((idle + 1)); else idle=0; fi
  if [ "$idle" -ge "$max_idle_requeues" ]; then
    say "$why; requeued $idle times without progress, so it is given up"
    return 1
  fi
  printf '%s %s\n' "$idle" "$now" > "$events.requeues"
  say "$why; requeued"
  scontrol requeue "${SLURM_ARRAY_JOB_ID:-$SLURM_JOB_ID}${task:+_$task}"
}

# USR1 announces the time limit: stop cleanly and continue later. TERM is `scancel` or preemption;
# Slurm decides whether such a job runs again.
child='' signalled=0 may_requeue=0
# shellcheck disable=SC2317  # called by the traps below
pass_on() {
  signalled=1
  if [ "$1" = USR1 ]; then may_requeue=1; fi
  if [ -n "$child" ]; then kill "-$1" "$child" 2>/dev/null || true; fi
}
trap 'pass_on USR1' USR1
trap 'pass_on TERM' TERM

cd -- "$workdir"
export HF_HOME=/data/hf
export MBT_RUNS=/data/runs
# Whether a folder allows writing and execution.
runs_in() {
  local file="$1/try.$$"
  printf '#!/bin/sh\n' > "$file" && chmod +x "$file" && "$file" && rm -f -- "$file"
}

# Make a folder for this job below $1, and remove those of jobs that were killed.
scratch_in() {
  local mine="$1/mbt-$UID" lock held
  if [ ! -d "$1" ] || [ "${#mine}" -gt 50 ]; then return 1; fi
  mkdir -m 700 -- "$mine" || true  # another job may have made it
  if [ -L "$mine" ] || [ ! -O "$mine" ] || [ ! -w "$mine" ]; then return 1; fi
  for lock in "$mine"/*.lock; do
    if [ -e "$lock" ] && flock -n "$lock" rm -rf -- "${lock%.lock}"; then rm -f -- "$lock"; fi
  done
  scratch="$mine/${SLURM_JOB_ID:-$$}"
  exec {held}> "$scratch.lock" && flock -n "$held" && mkdir -p -- "$scratch/tmp" &&
    runs_in "$scratch"
}

# Temporary files are on the node, in a folder that allows execution and has a short path: names of
# sockets have at most 107 characters. Compiled kernels are kept for each node and version.
scratch='' versions=any python="$(command -v -- "${command[0]}" || true)"
python="${python%/*}/python"
trap 'if [ -n "$scratch" ]; then rm -rf -- "$scratch" "$scratch.lock"; fi' EXIT
mkdir -p -- "$cache/jobs" || true  # nodes may see a home that only login nodes write to
for place in "$first_tmpdir" "${SLURM_TMPDIR:-}" "${TMPDIR:-}" /tmp /var/tmp "$cache/jobs"; do
  if [ -n "$place" ] && scratch_in "$place" 2>/dev/null; then break; fi
  scratch=''
done
if [ -n "$scratch" ]; then export TMPDIR="$scratch/tmp"; fi
if [ -x "$python" ]; then versions="$("$python" -I -c "$packages" 2>/dev/null || echo any)"; fi
compiled="$cache/compiled/${HOSTNAME%%.*}/$versions"
# the nodes of a job with several do not share such a folder
if [ "${SLURM_JOB_NUM_NODES:-1}" != 1 ] || ! mkdir -p -- "$compiled" ||
  ! runs_in "$compiled" 2>/dev/null; then
  compiled="${TMPDIR:-/tmp}/compiled"
fi
export TRITON_CACHE_DIR="${TRITON_CACHE_DIR:-$compiled/triton}"
export TORCHINDUCTOR_CACHE_DIR="${TORCHINDUCTOR_CACHE_DIR:-$compiled/inductor}"
export VLLM_CACHE_ROOT="${VLLM_CACHE_ROOT:-$compiled/vllm}" RAY_TMPDIR="${RAY_TMPDIR:-/tmp}"
export FLASHINFER_WORKSPACE_BASE="${FLASHINFER_WORKSPACE_BASE:-$compiled}"
head_node="$(scontrol show hostnames "$SLURM_JOB_NODELIST" | sed -n 1p)"
export MASTER_ADDR="$head_node" MASTER_PORT=$((20000 + SLURM_JOB_ID % 20000))
# srun does not inherit it
if [ -n "${SLURM_CPUS_PER_TASK:-}" ]; then
  export SRUN_CPUS_PER_TASK="$SLURM_CPUS_PER_TASK"
fi
node=(
  /opt/venv/bin/mbt
  node
)
# a server over all nodes: `mbt node` on every other node runs its part and stops with this job
export MBT_NODES="$SLURM_JOB_NUM_NODES" MBT_NODES_ADDRESS="$MASTER_ADDR:$MASTER_PORT"
MBT_NODES_KEY="$(od -An -N32 -tx1 /dev/urandom | tr -d ' \n')"
export MBT_NODES_KEY
srun --overlap --nodes="$((SLURM_JOB_NUM_NODES - 1))" --ntasks="$((SLURM_JOB_NUM_NODES - 1))" \
  --ntasks-per-node=1 -x "$head_node" --export=ALL --kill-on-bad-exit=1 "${node[@]}" &
# a signal may have arrived before the command started
if [ "$may_requeue" = 1 ]; then requeue 'stopped by a signal before it began' || exit 75; exit 0; fi
if [ "$signalled" = 1 ]; then say 'stopped from outside before it began'; exit 75; fi
if [ "$shards" != 1 ]; then command+=(--shard "$((before + ${task:-1}))/$shards"); fi

say "started on ${SLURM_JOB_NODELIST:-$(hostname)}, job ${SLURM_JOB_ID:-none}, attempt $((${SLURM_RESTART_COUNT:-0} + 1))"
"${command[@]}" &
child=$!
code=127  # as of a command that is not found
while :; do
  signalled=0
  got=0
  wait "$child" || got=$?
  # a signal interrupts `wait`; a second `wait` for the same child returns 127
  if [ "$got" != 127 ]; then code=$got; fi
  if [ "$signalled" = 0 ]; then break; fi
done

case $code in
  0) say 'done' ;;
  75)
    if [ "$may_requeue" = 0 ]; then say 'stopped from outside with everything kept'; exit 75; fi
    requeue 'stopped by a signal with everything kept' || exit 75
    exit 0
    ;;
  137) requeue 'killed, most likely for memory' || exit 137; exit 0 ;;
  *) say "failed with exit code $code" ;;
esac
exit "$code"
