#!/usr/bin/env bash
# All that is measured on a GPU, in at most 9 minutes:
#
#   bash scripts/devices/gpu.sh DIR          # again with the same DIR: the missing rows of xxl.py
#   bash scripts/devices/gpu.sh DIR tiny     # a dry run on a CPU, without XLA's flags
#
# Hugging Face needs torch and transformers; without them that part ends at once.
#
# Steps and kernels of drafts and the embedded pair, the same bits in bfloat16, Hugging Face on the
# grown pair, the rows of the paper, and then XLA's flags of docs/reference/gpu-tables.md, as many as
# there is time for.
set -uo pipefail
mkdir -p "${1:?give a folder for the results}"
folder=$(cd "$1" && pwd) sizes=${2:-full} limit=${LIMIT:-540}
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
export PYTHONPATH=.:scripts/devices

flags=(
  --xla_gpu_enable_triton_gemm=false
  --xla_gpu_cublas_fallback=false
  --xla_gpu_experimental_enable_fusion_block_level_rewriter=true
  --xla_gpu_enable_while_loop_double_buffering=true
  --xla_gpu_autotune_level=0
  "--xla_gpu_enable_command_buffer=+WHILE --xla_gpu_command_buffer_unroll_loops=true"
)

# part SECONDS COMMAND...: ends it after these seconds, or when the time of the whole run is over.
part() {
  local left=$((limit - SECONDS))
  (( left > 5 )) || { echo "left out, no time: ${*:2}"; return; }
  echo "after $SECONDS s: ${*:2}"
  timeout $(($1 < left ? $1 : left)) "${@:2}" || echo "ended with $?: ${*:2}"
}

part 100 python scripts/devices/draft_step.py --output_file="$folder/steps.jsonl" --sizes="$sizes"
part 130 python scripts/peers/on_a_gpu.py --output_file="$folder/hf.jsonl" --sizes="$sizes" --texts=4
part 240 python scripts/devices/xxl.py --output_dir="$folder/xxl" --sizes="$sizes" --minutes=3.5
[[ $sizes == full ]] || exit 0
for n in "${!flags[@]}"; do
  XLA_FLAGS=${flags[n]} part 60 python scripts/devices/draft_step.py --only=small --output_file="$folder/flags_$n.jsonl"
done
