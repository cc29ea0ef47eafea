#!/usr/bin/env bash
# Measure a checkpoint on several GPUs: tools/dist_test.sh CONFIG WEIGHTS GPUS [options of test.py]
# Over several machines set NNODES, NODE_RANK, MASTER_ADDR and PORT.
set -euo pipefail
if [ $# -lt 3 ]; then
    echo "usage: $0 CONFIG WEIGHTS GPUS [options of test.py]" >&2
    exit 2
fi
CONFIG=$1
WEIGHTS=$2
GPUS=$3
exec "${PYTHON:-python}" -m torch.distributed.run \
    --nnodes="${NNODES:-1}" --node_rank="${NODE_RANK:-0}" --nproc_per_node="$GPUS" \
    --master_addr="${MASTER_ADDR:-127.0.0.1}" --master_port="${PORT:-29500}" \
    "$(dirname "$0")/test.py" "$CONFIG" "$WEIGHTS" --launcher pytorch "${@:4}"
