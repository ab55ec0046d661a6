"""Holds `quadrille score` and greedy `quadrille generate` against transformers on one model folder, in float32.

Takes a few lines of prose and code, as text of many kinds of character; --rows N compares the prompts of a JSONL file
instead. Exit 1 if a log-probability differs by more than 2e-4 or a greedy continuation differs.

Usage: compare_model.py --model DIR [--rows FILE.jsonl] [--count N] [--quadrille PATH]
e.g.   compare_model.py --model models/SmolLM2-135M-Instruct
Needs: the environment of tools/oracle_env.sh.
"""

import argparse
import json
import sys
import tempfile
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

import parity
import parity_cases as cases

TEXTS = [
    "The quick brown fox jumps over the lazy dog, and the dog does not mind at all.",
    "def area(radius):\n    return 3.14159 * radius ** 2\n\nprint(area(2.5))",
    "Zwölf Boxkämpfer jagen Viktor quer über den großen Sylter Deich — 中文, 日本語, 한국어, 🙂.",
    "1, 1, 2, 3, 5, 8, 13, 21, 34, 55, 89, 144, 233, 377, 610, 987, 1597, 2584, 4181, 6765, 10946, 17711",
    "State the final answer to the following arithmetic problem: 62 + 23 =",
]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--rows", type=Path, help="JSONL whose `prompt` fields are compared")
    parser.add_argument("--count", type=int, default=20, help="rows of that file")
    parser.add_argument("--quadrille", type=Path, default=parity.ROOT / "build/release/apps/quadrille/quadrille")
    args = parser.parse_args()
    texts = TEXTS
    if args.rows:
        with open(args.rows, encoding="utf-8") as lines:
            texts = [json.loads(line)["prompt"] for line, _ in zip(lines, range(args.count))]
    tokenizer = AutoTokenizer.from_pretrained(args.model)
    model = AutoModelForCausalLM.from_pretrained(args.model, dtype=torch.float32).eval()
    sequences = [tokenizer(text)["input_ids"] for text in texts]

    rows = [{"id": f"s{i}", "tokens": tokens} for i, tokens in enumerate(sequences)]
    with tempfile.TemporaryDirectory(prefix="quadrille-compare-") as folder:
        try:
            scored = parity.run(args.quadrille, "score", args.model, Path(folder), rows)
            error = parity.largest_error([r["logprobs"] for r in scored],
                                         [cases.score(model, tokens)[0] for tokens in sequences])
            made = parity.run(args.quadrille, "generate", args.model, Path(folder), rows,
                              "--max-new-tokens", str(cases.GREEDY_TOKENS), "--temperature", "0")
        except parity.Mismatch as mismatch:
            sys.exit(f"compare_model: {mismatch}")
        equal = sum(row["tokens"] == cases.continue_greedily(model, tokens)[0] for row, tokens in zip(made, sequences))
    total = sum(len(tokens) - 1 for tokens in sequences)
    print(f"{args.model}: {type(model).__name__}, {total} log-probabilities, largest difference {error:.2e}; "
          f"{equal} of {len(made)} greedy continuations equal")
    sys.exit(0 if error <= parity.TOLERANCE and equal == len(made) else 1)


if __name__ == "__main__":
    main()
