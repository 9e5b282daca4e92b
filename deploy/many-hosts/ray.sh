#!/bin/sh
# Start a Ray cluster manually: on the first host, then on every other one, then the command anywhere in the cluster.
#
#   ray.sh head                 # on the first host; prints nothing else to do
#   ray.sh host HEAD            # on every other host
#   ray.sh run --recipe default --devices 64
#
# dreamshard and its extra `ray` are installed on all hosts. An existing Ray cluster (KubeRay, Anyscale) needs only the last
# line. Tried with a cluster of two Ray nodes on one machine, on CPUs.
set -eu
export RAY_USAGE_STATS_ENABLED=0
action=$1
shift
case $action in
  head) exec ray start --head --port 6379 --disable-usage-stats "$@" ;;
  host) address=$1 && shift && exec ray start --address "$address:6379" --disable-usage-stats "$@" ;;
  *) exec dreamshard "$action" --testbed cluster:ray "$@" ;;
esac
