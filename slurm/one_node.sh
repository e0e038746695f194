#!/bin/bash
# Run Slurm with one node on this machine, to try `mbt submit --slurm` without a cluster.
#
#     sudo slurm/one_node.sh start [NODES] | stop | status
#
# For Debian and Ubuntu, as root: installs slurm-wlm and munge and writes /etc/slurm/slurm.conf, so
# never run it on a machine of a cluster. It has one partition `main`, all CPUs, one fake GPU, arrays
# of 8 tasks at most, and no accounting. With NODES, this machine plays so many nodes: 127.0.0.1, 127.0.0.2, ...
set -euo pipefail

readonly conf=/etc/slurm/slurm.conf
readonly own_munge=/run/munge/started-by-one_node.sh
readonly mark='# written by one_node.sh'
readonly count=${2:-1}

need_root() {
  if [ "$(id -u)" -ne 0 ]; then echo 'run this as root' >&2; exit 2; fi
}

refuse_a_real_cluster() {
  if [ -s "$conf" ] && ! grep -qxF "$mark" "$conf" && ! grep -qx 'ClusterName=one' "$conf"; then
    echo "$conf belongs to another Slurm; it is left unchanged" >&2
    exit 2
  fi
}

install_slurm() {
  if command -v slurmctld >/dev/null && command -v munged >/dev/null; then return; fi
  apt-get update -qq
  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq slurm-wlm munge >/dev/null
}

start_munge() {
  if pgrep -x munged >/dev/null; then return; fi
  mkdir -p /run/munge /var/lib/munge /var/log/munge /etc/munge
  if [ ! -s /etc/munge/munge.key ]; then
    head -c 1024 /dev/urandom > /etc/munge/munge.key
  fi
  chown -R munge: /run/munge /var/lib/munge /var/log/munge /etc/munge
  chmod 400 /etc/munge/munge.key
  runuser -u munge -- /usr/sbin/munged
  touch "$own_munge"
}

node_names() {
  if [ "$count" -eq 1 ]; then hostname -s; else seq -f '127.0.0.%g' "$count"; fi
}

# a node's line; several daemons on one machine need ports of their own
node_line() {
  local number=$1 name=$2 own=''
  if [ "$count" -gt 1 ]; then own="NodeHostname=$(hostname -s) Port=$((16818 + number)) "; fi
  echo "NodeName=$name NodeAddr=127.0.0.1 ${own}CPUs=$(nproc) RealMemory=1000 Gres=gpu:1 State=UNKNOWN"
}

write_conf() {
  local host number=0 name
  host=$(hostname -s)
  mkdir -p /etc/slurm /var/spool/mbt-slurmctld /var/log/slurm
  for name in $(node_names); do mkdir -p "/var/spool/slurmd/$name"; done
  cat > "$conf" <<CONF
$mark
ClusterName=one
SlurmctldHost=$host(127.0.0.1)
AuthType=auth/munge
SlurmUser=root
SlurmdUser=root
StateSaveLocation=/var/spool/mbt-slurmctld
SlurmdSpoolDir=/var/spool/slurmd/%n
SlurmctldPidFile=/run/slurmctld.pid
SlurmdPidFile=/run/slurmd.%n.pid
SlurmctldLogFile=/var/log/slurm/slurmctld.log
SlurmdLogFile=/var/log/slurm/slurmd.%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=sched_interval=1,bf_interval=1
ReturnToService=2
MpiDefault=none
SwitchType=switch/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
KillWait=5
MinJobAge=3600
MaxArraySize=9
GresTypes=gpu
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP
CONF
  for name in $(node_names); do
    number=$((number + 1))
    node_line "$number" "$name" >> "$conf"
  done
  echo "Name=gpu File=/dev/null Count=1" > /etc/slurm/gres.conf
}

start() {
  need_root
  refuse_a_real_cluster
  install_slurm
  if scontrol ping 2>/dev/null | grep -q UP; then sinfo; return; fi
  start_munge
  write_conf
  slurmctld
  sleep 1
  local name
  for name in $(node_names); do slurmd -N "$name"; done
  for _ in $(seq 60); do
    if sinfo -h -o %T 2>/dev/null | grep -Eq 'idle|mixed|alloc'; then break; fi
    sleep 0.5
  done
  sinfo
}

stop() {
  need_root
  local file pid
  for file in /run/slurmd*.pid /run/slurmctld.pid; do
    pid=$(cat "$file" 2>/dev/null || true)
    if [ -n "$pid" ]; then kill "$pid" || true; fi
  done
  # stop munge only if this script started it
  if [ -e "$own_munge" ]; then pkill -x munged || true; rm -f "$own_munge"; fi
}

case "${1:-start}" in
  start) start ;;
  stop) stop ;;
  status) scontrol ping; sinfo; squeue ;;
  *) echo 'one_node.sh start [NODES] | stop | status' >&2; exit 2 ;;
esac
