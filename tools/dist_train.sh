#!/usr/bin/env bash
# Train on several GPUs of this machine (or several CPU processes): tools/dist_train.sh CONFIG GPUS [options of train.py]
# Over several machines set NNODES, NODE_RANK, MASTER_ADDR and PORT.
set -euo pipefail
if [ $# -lt 2 ]; then
    echo "usage: $0 CONFIG GPUS [options of train.py]" >&2
    exit 2
fi
CONFIG=$1
GPUS=$2
exec "${PYTHON:-python}" -m torch.distributed.run \
    --nnodes="${NNODES:-1}" --node_rank="${NODE_RANK:-0}" --nproc_per_node="$GPUS" \
    --master_addr="${MASTER_ADDR:-127.0.0.1}" --master_port="${PORT:-29500}" \
    "$(dirname "$0")/train.py" "$CONFIG" --launcher pytorch "${@:3}"
