# shellcheck shell=bash disable=SC2034
# The settings of the cluster scripts. Variables of the environment take precedence.

# Machines, by the names that the remote shell knows. A job takes the first machines of the list.
# Each machine runs servers and one worker per device. The first one runs the scheduler too.
CLUSTER_HOSTS="192.168.80.230 192.168.80.231 192.168.80.232 192.168.80.233
  192.168.80.234 192.168.80.235 192.168.80.236 192.168.80.237"
CLUSTER_SERVERS=2 # on each machine; 0 for PyTorch, which needs no servers and no scheduler
DMLC_NUM_WORKER=  # machines of a job; empty: as in BytePS's guide, or all machines for a COMMAND
CLUSTER_MAX_RESTARTS= # after failures; jobs then need --resume auto. Empty: no restarts

# The command that runs another command on a machine. Its last two arguments are the machine and
# one string for the shell there. With -tt, the command ends when the connection does.
CLUSTER_REMOTE_SHELL="ssh -tt -o BatchMode=yes -l ubuntu"

# Paths, the same on all machines.
CLUSTER_REPOSITORY=~/gluon_gc
CLUSTER_PYTHON=~/gluon_gc/.venv/bin/python
CLUSTER_DATA=~/data    # contains cifar100/ and ILSVRC2012/
CLUSTER_WORK=~/cluster # working directory of the jobs, for checkpoints and logs

# The network. DMLC_PS_ROOT_URI is the first machine's address; empty: the first of CLUSTER_HOSTS.
DMLC_PS_ROOT_URI=
DMLC_PS_ROOT_PORT=1234
DMLC_INTERFACE= # such as ens3; empty: the first interface that is up

# The processors and devices of a machine. Without GPUs, leave NVIDIA_VISIBLE_DEVICES empty and set
# CLUSTER_GPUS=0.
NVIDIA_VISIBLE_DEVICES=0,1,2,3,4,5,6,7 # one worker process for each GPU
CLUSTER_GPUS=1                         # GPUs of a worker process
BYTEPS_NUMA_ON=1
OMP_NUM_THREADS=4
OMP_WAIT_POLICY=PASSIVE

BYTEPS_LOG_LEVEL=WARNING
