#!/usr/bin/env bash
# The demo: a tiny Mixture-of-Experts learns to put six digits in order. Under a minute on two cores.
#
#   tools/demo.sh QUADRILLE [SEED]
#
# Two runs of the real program with the files of configs/demo/: SFT from random weights, then GRPO from its result.
# Ends with a table of held-out accuracy, sample answers, and where the curves are.
set -euo pipefail
quadrille=$1
seed=${2:-1}
cd "$(dirname "$0")/.."
folder=demo-run
rm -rf "$folder"
mkdir -p "$folder"
echo "demo: a 1 M-parameter MoE learns to sort six digits; runs go to $folder/ (log: $folder/log.txt)"
echo "demo: to look at it while it runs:  tail -f $folder/grpo/metrics.jsonl   or   tensorboard --logdir $folder"
python3 tools/make_sort_data.py "$folder/data"
started=$SECONDS
for part in sft grpo; do
  echo "demo: $part: quadrille train --config configs/demo/$part.toml --set run.seed=$seed"
  # The live line stays on the terminal; a pipe gets plain lines.
  "$quadrille" train --config "configs/demo/$part.toml" --set "run.seed=$seed" > >(tee -a "$folder/log.txt") \
    || { echo "demo: $part failed; see $folder/log.txt" >&2; exit 1; }
done
python3 tools/demo_report.py "$folder" "$((SECONDS - started))"
