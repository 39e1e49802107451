# shellcheck shell=bash disable=SC2034
# The cluster: all that the scripts beside this file need to know of it. The environment wins.

# Machines, as the remote shell calls them. A job takes the first of them; each gets a worker
# (several with several devices) and servers, and the first one the scheduler too.
CLUSTER_HOSTS="192.168.80.230 192.168.80.231 192.168.80.232 192.168.80.233
  192.168.80.234 192.168.80.235 192.168.80.236 192.168.80.237"
CLUSTER_SERVERS=2 # on each machine; 0 for PyTorch, which needs no servers and no scheduler
DMLC_NUM_WORKER=  # machines that a job takes; empty: as BytePS's guide, or all for one's own command
CLUSTER_MAX_RESTARTS= # after failures; the jobs then want --resume auto. Empty: none

# What runs a command on a machine: it is called with the machine and with one string, which is for
# a shell there. -tt lets the command end when the connection does.
CLUSTER_REMOTE_SHELL="ssh -tt -o BatchMode=yes -l ubuntu"

# Paths, the same on all machines.
CLUSTER_REPOSITORY=~/gluon_gc
CLUSTER_PYTHON=~/gluon_gc/.venv/bin/python
CLUSTER_DATA=~/data    # has cifar100/ and ILSVRC2012/
CLUSTER_WORK=~/cluster # jobs run there, and leave checkpoints and logs there

# The network. The address is the first machine's; empty: CLUSTER_HOSTS has it.
DMLC_PS_ROOT_URI=
DMLC_PS_ROOT_PORT=1234
DMLC_INTERFACE= # such as ens3; empty: the first that is up

# The processors and devices of a machine. Without GPUs: no NVIDIA_VISIBLE_DEVICES, CLUSTER_GPUS=0.
NVIDIA_VISIBLE_DEVICES=0,1,2,3,4,5,6,7 # a worker process for each
CLUSTER_GPUS=1                         # of each worker process
BYTEPS_NUMA_ON=1
OMP_NUM_THREADS=4
OMP_WAIT_POLICY=PASSIVE

BYTEPS_MIN_COMPRESS_BYTES=1024000
BYTEPS_LOG_LEVEL=WARNING
