# shellcheck shell=bash
# vLLM on Ray: a head, a worker on every other node; start when all nodes have joined
srun --overlap --nodes=1 --ntasks=1 -w "$head_node" \
  ray start --head --node-ip-address="$MASTER_ADDR" --port="$MASTER_PORT" --block &
srun --overlap --nodes="$((SLURM_JOB_NUM_NODES - 1))" --ntasks="$((SLURM_JOB_NUM_NODES - 1))" \
  -x "$head_node" ray start --address="$MASTER_ADDR:$MASTER_PORT" --block &
export RAY_ADDRESS="$MASTER_ADDR:$MASTER_PORT" MBT_NODES="$SLURM_JOB_NUM_NODES"
for ((second = 0; ; second += 5)); do
  ready="$(ray list nodes --filter state=ALIVE --format json 2>/dev/null |
    grep -c '"node_id"' || true)"
  if [ "$ready" -ge "$SLURM_JOB_NUM_NODES" ]; then break; fi
  if [ "$signalled" = 1 ]; then break; fi
  if [ "$second" -ge 600 ]; then say "only $ready of $SLURM_JOB_NUM_NODES nodes joined"; exit 1; fi
  sleep 5
done
