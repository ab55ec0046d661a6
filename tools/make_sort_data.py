#!/usr/bin/env python3
"""Writes the demo's task: put six digits in order. Plain Python, no packages.

    make_sort_data.py FOLDER [--digits 6] [--sft 8192] [--rl 8192] [--test 512] [--seed 0]

FOLDER gets sft.jsonl (prompt, completion), rl.jsonl and test.jsonl (prompt, answer). No input of test.jsonl is in
either training file: held-out means never seen.
"""
import argparse
import json
import pathlib
import random


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--digits", type=int, default=6)
    parser.add_argument("--sft", type=int, default=8192)
    parser.add_argument("--rl", type=int, default=8192)
    parser.add_argument("--test", type=int, default=512)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    total = args.sft + args.rl + args.test
    if total > 10**args.digits:
        parser.error(f"{total} rows asked for, but there are only {10**args.digits} inputs of {args.digits} digits")
    inputs = random.Random(args.seed).sample(range(10**args.digits), total)
    args.folder.mkdir(parents=True, exist_ok=True)
    at = 0
    for name, count, key in (("test", args.test, "answer"), ("sft", args.sft, "completion"), ("rl", args.rl, "answer")):
        with open(args.folder / f"{name}.jsonl", "w", encoding="utf-8") as out:
            for number in inputs[at:at + count]:
                digits = f"{number:0{args.digits}d}"
                row = {"prompt": digits + "=", key: "".join(sorted(digits))}
                out.write(json.dumps(row) + "\n")
        at += count
    print(f"{args.folder}: {args.sft} SFT rows, {args.rl} RL rows, {args.test} held-out rows")


if __name__ == "__main__":
    main()
