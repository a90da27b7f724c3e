#!/usr/bin/env bash
# A Slurm of one node on this machine, for tests. `slurm_here.sh start FOLDER` prints the path of its configuration, for
# SLURM_CONF; `slurm_here.sh stop FOLDER` ends it. Needs slurmctld, slurmd, slurm-client and munge (Debian's names).
set -euo pipefail
folder=$(realpath -m "$2")
export SLURM_CONF=$folder/slurm.conf

stop() {
    for name in slurmd slurmctld munged; do
        [[ -s $folder/$name.pid ]] && kill "$(cat "$folder/$name.pid")" 2>/dev/null || true
    done
}

free_port() { python3 -c 'import socket; s = socket.socket(); s.bind(("", 0)); print(s.getsockname()[1])'; }

start() {
    mkdir -p "$folder"/{state,spool}
    chmod 755 "$folder"
    head -c 1024 /dev/urandom >"$folder/munge.key"
    chmod 600 "$folder/munge.key"
    munged --force --key-file="$folder/munge.key" --socket="$folder/munge.socket" --pid-file="$folder/munged.pid" \
        --log-file="$folder/munged.log" --seed-file="$folder/munge.seed"
    cat >"$SLURM_CONF" <<END
ClusterName=here
SlurmctldHost=$(hostname -s)(127.0.0.1)
SlurmUser=$(id -un)
SlurmdUser=$(id -un)
SlurmctldPort=$(free_port)
SlurmdPort=$(free_port)
SlurmctldPidFile=$folder/slurmctld.pid
SlurmdPidFile=$folder/slurmd.pid
SlurmctldLogFile=$folder/slurmctld.log
SlurmdLogFile=$folder/slurmd.log
StateSaveLocation=$folder/state
SlurmdSpoolDir=$folder/spool
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket=$folder/munge.socket,cred_expire=3
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SchedulerParameters=sched_interval=2,bf_interval=2
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
OverTimeLimit=0
ReturnToService=2
KillWait=10
MinJobAge=300
NodeName=$(hostname -s) NodeAddr=127.0.0.1 CPUs=${CPUS:-2} RealMemory=1000 State=UNKNOWN
PartitionName=low Nodes=ALL Default=YES PriorityTier=1 State=UP
PartitionName=kind Nodes=ALL PriorityTier=1 GraceTime=20 State=UP
PartitionName=high Nodes=ALL PriorityTier=9 PreemptMode=OFF State=UP
END
    slurmctld -c
    slurmd
    for _ in $(seq 100); do
        [[ $(sinfo -h -o %T 2>/dev/null | head -n 1) == idle ]] && echo "$SLURM_CONF" && exit
        sleep .2
    done
    tail "$folder"/*.log >&2
    stop
    exit 1
}

"$1"
