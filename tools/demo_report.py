#!/usr/bin/env python3
"""Prints what the demo reached: held-out accuracy before SFT, after SFT and after GRPO, and answers before and after.

    demo_report.py DEMO_FOLDER SECONDS

Reads the runs' metrics.jsonl and samples.jsonl; exits with 1 if GRPO added less than 20 points.
"""
import json
import pathlib
import sys


def lines(path):
    with open(path, encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def accuracy(folder):
    """[(step, accuracy)] of the run's evaluations."""
    return [(m["step"], m["eval/accuracy"]) for m in lines(folder / "metrics.jsonl") if "eval/accuracy" in m]


def evaluated(folder, step):
    """prompt -> row of samples.jsonl for the evaluation at `step`."""
    return {s["prompt"]: s for s in lines(folder / "samples.jsonl") if s["split"] == "eval" and s["step"] == step}


def main():
    folder, seconds = pathlib.Path(sys.argv[1]), int(sys.argv[2])
    sft, grpo = accuracy(folder / "sft"), accuracy(folder / "grpo")
    rows = [("random weights", sft[0]), ("after SFT", sft[-1]), ("after GRPO", grpo[-1])]
    print(f"\nheld-out accuracy (inputs never trained on), {seconds} s in all")
    print("| model          | steps | accuracy |")
    print("|----------------|------:|---------:|")
    for name, (step, value) in rows:
        print(f"| {name:<14} | {step:>5} | {100 * value:>6.1f} % |")
    before, after = evaluated(folder / "grpo", 0), evaluated(folder / "grpo", grpo[-1][0])
    mended = [p for p in before if p in after and before[p]["reward"] < after[p]["reward"]]
    print("\nthree answers, before and after GRPO")
    for prompt in (mended + [p for p in before if p not in mended])[:3]:
        print(f"  {prompt}  {before[prompt]['completion']:<10} ->  {after[prompt]['completion']:<10} "
              f"(right: {after[prompt]['answer']})")
    print(f"\ncurves: {folder}/sft/curves.svg, {folder}/grpo/curves.svg; the trained model: {folder}/grpo/model")
    gain = 100 * (rows[2][1][1] - rows[1][1][1])
    print(f"GRPO added {gain:.1f} points")
    if gain < 20:
        print("demo: that is less than the 20 points it should reach", file=sys.stderr)
        sys.exit(1)


if __name__ == "__main__":
    main()
