#!/bin/sh
# Start one host of a cluster manually: run this on every host, in any order. docs/many-hosts.md explains it.
#
#   torchrun.sh HEAD NUM_HOSTS INDEX RANKS_PER_HOST COMMAND ...
#   torchrun.sh gpu01 8 0 8 run --recipe default --testbed cluster --devices 64     # on gpu01, which runs the command
#   torchrun.sh gpu01 8 1 8 run --recipe default --testbed cluster --devices 64     # on the second host, and so on
#
# Tried with two launchers of two CPU ranks each on loopback addresses. Set MASTER_PORT if port 29500 of HEAD is in use.
set -eu
head=$1 num_hosts=$2 index=$3 ranks=$4
shift 4
exec torchrun --nnodes "$num_hosts" --nproc-per-node "$ranks" --node-rank "$index" \
  --master-addr "$head" --master-port "${MASTER_PORT:-29500}" -m flows.cli.ranks "$@"
