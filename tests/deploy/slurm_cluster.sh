# SPDX-License-Identifier: Apache-2.0
# A one-machine Slurm cluster below $work: munged, slurmctld and slurmd on free ports, as root. To be sourced; needs
# `port`, a function that prints a free port. Nothing outside $work is touched.
# shellcheck shell=bash

cluster_pids=()

start_cluster() { # work, CPUs that the node says it has
  local work=$1 cpus=$2 host
  host=$(hostname -s)
  install -d -m 700 "$work/munge" "$work/spool" "$work/state"
  install -m 755 -d "$work/run"
  (umask 077 && head -c 1024 /dev/urandom >"$work/munge/key")
  munged --foreground --force --socket "$work/run/munge" --key-file "$work/munge/key" --pid-file "$work/munge/pid" \
    --log-file "$work/munge/log" --seed-file "$work/munge/seed" >"$work/munged.log" 2>&1 &
  cluster_pids+=($!)
  # Stand-ins for the device files of GPUs; sbatch --test-only needs no more.
  local gpu
  for gpu in 0 1 2 3; do mknod "$work/gpu$gpu" c 1 3; done
  cat >"$work/slurm.conf" <<EOF
ClusterName=test
SlurmctldHost=$host(127.0.0.1)
SlurmctldPort=$(port)
SlurmdPort=$(port)
SrunPortRange=40000-49999
AuthType=auth/munge
AuthInfo=socket=$work/run/munge
CryptoType=crypto/munge
SlurmUser=root
SlurmdUser=root
StateSaveLocation=$work/state
SlurmdSpoolDir=$work/spool
SlurmctldPidFile=$work/slurmctld.pid
SlurmdPidFile=$work/slurmd.pid
SlurmctldLogFile=$work/slurmctld.log
SlurmdLogFile=$work/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SlurmdParameters=config_overrides
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
MpiDefault=none
ReturnToService=2
SchedulerParameters=sched_interval=1
GresTypes=gpu
NodeName=$host NodeAddr=127.0.0.1 CPUs=$cpus RealMemory=1000 Gres=gpu:4 State=UNKNOWN
PartitionName=test Nodes=$host Default=YES MaxTime=INFINITE State=UP
EOF
  echo "Name=gpu File=$work/gpu[0-3]" >"$work/gres.conf"
  export SLURM_CONF=$work/slurm.conf
  slurmctld -D >"$work/slurmctld.out" 2>&1 &
  cluster_pids+=($!)
  slurmd -D -N "$host" >"$work/slurmd.out" 2>&1 &
  cluster_pids+=($!)
  local left=600
  until [[ $(sinfo -h -o %T 2>/dev/null) == idle ]]; do
    if ! kill -0 "${cluster_pids[@]}" || ((--left == 0)); then
      tail -n 20 "$work"/{munged.log,slurmctld.log,slurmctld.out,slurmd.log,slurmd.out} >&2 || true
      return 1
    fi
    sleep 0.1
  done
}

stop_cluster() {
  local pid
  for pid in "${cluster_pids[@]}"; do kill "$pid" 2>/dev/null || true; done
  for pid in "${cluster_pids[@]}"; do wait "$pid" 2>/dev/null || true; done
}
