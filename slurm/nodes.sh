# shellcheck shell=bash
# a server over all nodes: `mbt node` on every other node runs its part and stops with this job
export MBT_NODES="$SLURM_JOB_NUM_NODES" MBT_NODES_ADDRESS="$MASTER_ADDR:$MASTER_PORT"
MBT_NODES_KEY="$(od -An -N32 -tx1 /dev/urandom | tr -d ' \n')"
export MBT_NODES_KEY
srun --overlap --nodes="$((SLURM_JOB_NUM_NODES - 1))" --ntasks="$((SLURM_JOB_NUM_NODES - 1))" \
  --ntasks-per-node=1 -x "$head_node" --export=ALL --kill-on-bad-exit=1 "${node[@]}" &
