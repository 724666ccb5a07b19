#!/usr/bin/env bash
# Everything that benchmarks/RESULTS.md tells of language models and small policies on a GPU, the most important first.
#   benchmarks/on_gpu.sh OUT          # about twelve minutes; figures and logs go to OUT
# TRL joins in where it is installed, vLLM and SmolLM2 too. Each part has its time; what fails leaves its log and stops nobody.
set -u
out=${1:?where the figures go}
here=$(dirname "$0")
mkdir -p "$out"
run() { # name, seconds, arguments of a benchmark
  local name=$1 limit=$2
  shift 2
  echo "== $name: $*"
  timeout "$limit" "${PYTHON:-python3}" "$here/$1.py" "${@:2}" --json "$out/$name.json" > "$out/$name.log" 2>&1
  tail -n "${LINES_SHOWN:-12}" "$out/$name.log"
}
sampling=(rollout --device cuda --samplers ours --rounds 3)
run sampling-0.5B 60 "${sampling[@]}" --shapes 0.5B --group 8 64
run sampling-7B 60 "${sampling[@]}" --shapes 7B --group 8 64
run sampling-1.5B 60 "${sampling[@]}" --shapes 1.5B --group 8 64
run sampling-14B 60 "${sampling[@]}" --shapes 14B --group 8
run ragged 60 "${sampling[@]}" --shapes 0.5B --group 64 --answer 1024 --ragged 16
run equal 60 "${sampling[@]}" --shapes 0.5B --group 64 --answer 520
run large 150 large_step --shape 14B --steps 2
run step 150 step --device cuda --shapes 0.5B --prompt 128 --answer 128 --group 8 64 --rounds 2
run learner 110 learner --only checks,memory,1.5B,7B,siblings,compiled
run learner-7B 170 learner --only "plain 7B,compiled 7B"
run small 140 small --device cuda
run check 90 rollout --device cuda --check 64 128
run generate 90 rollout --device cuda --shapes 0.5B --group 8 64 --samplers ours generate --rounds 1
