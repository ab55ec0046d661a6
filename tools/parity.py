"""Holds the quadrille program against a live transformers: same checkpoint, same tokens, same log-probabilities.

For each parity case it makes a random checkpoint, runs `quadrille score` and `quadrille generate` in float32 and
prints a table. A case passes if every log-probability (of given tokens, and of generated ones) is within the
tolerance and the greedy continuation, its end and its finish reason are the same. Exit 1 if any case fails.

Usage: parity.py [--quadrille PATH] [--cases WORD...] [--seed N | --seed random] [--keep DIR] [--json FILE]
Needs: the environment of tools/oracle_env.sh.
"""

import argparse
import json
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch

import parity_cases as cases

ROOT = Path(__file__).resolve().parent.parent
TOLERANCE = 2e-4
TIMEOUT_S = 120


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--quadrille", type=Path, default=ROOT / "build/release/apps/quadrille/quadrille")
    parser.add_argument("--cases", nargs="*", default=[], help="only cases whose name contains one of these words")
    parser.add_argument("--seed", default="0", help="a number, or 'random' (the number is printed)")
    parser.add_argument("--keep", type=Path, help="leave checkpoints, inputs and outputs in this folder")
    parser.add_argument("--json", type=Path, help="also write the table here")
    args = parser.parse_args()
    if not args.quadrille.is_file():
        raise SystemExit(f"parity: no program at {args.quadrille}; build it or give --quadrille")
    chosen = cases.select_cases(args.cases)
    seed = random.randrange(10**8) if args.seed == "random" else int(args.seed)
    torch.set_num_threads(1)

    print(f"parity with transformers, fp32, seed {seed}, tolerance {TOLERANCE:g}")
    print(f"{'case':34s} {'score error':>11s} {'generate error':>14s} {'greedy':>7s}  result")
    rows, start = [], time.monotonic()
    with tempfile.TemporaryDirectory(prefix="quadrille-parity-") as temp:
        for case in chosen:
            # The seed of a case does not depend on which others run, so --cases repeats a failure exactly.
            row = check(case, seed * 10_000 + 100 * cases.CASES.index(case), (args.keep or Path(temp)) / case.name,
                        args.quadrille)
            rows.append(row)
            print(f"{row['case']:34s} {number(row['score_error']):>11s} {number(row['generate_error']):>14s} "
                  f"{row['greedy']:>7s}  {'PASS' if row['passed'] else 'FAIL ' + row['why']}", flush=True)
    failed = sum(not r["passed"] for r in rows)
    worst = max((r["score_error"] for r in rows if r["score_error"] is not None), default=None)
    print(f"{len(rows) - failed} passed, {failed} failed  (largest score error {number(worst)}, "
          f"{time.monotonic() - start:.0f} s)")
    if args.json:
        args.json.write_text(json.dumps({"seed": seed, "tolerance": TOLERANCE, "cases": rows}, indent=1) + "\n")
    sys.exit(1 if failed else 0)


def number(x):
    return "-" if x is None else f"{x:.2e}"


def check(case, seed, folder, program):
    row = {"case": case.name, "score_error": None, "generate_error": None, "greedy": "-", "passed": False, "why": ""}
    model_dir = folder / "model"
    model_dir.parent.mkdir(parents=True, exist_ok=True)
    reference = cases.make_reference(case, seed, model_dir)
    prompts = [{"id": f"s{i}", "tokens": tokens} for i, tokens in enumerate(reference.sequences)]
    try:
        scored = run(program, "score", model_dir, folder, prompts)
        row["score_error"] = largest_error([o["logprobs"] for o in scored], reference.logprobs)
        made = run(program, "generate", model_dir, folder, prompts,
                   "--max-new-tokens", str(cases.GREEDY_TOKENS), "--temperature", "0")
        same = [o["tokens"] for o in made] == reference.greedy
        row["greedy"] = "equal" if same else "DIFFER"
        reasons = [o["finish_reason"] for o in made]
        if same:
            expected = [cases.score(reference.model, p + g)[0][len(p):]
                        for p, g in zip(reference.sequences, reference.greedy)]
            row["generate_error"] = largest_error([o["logprobs"] for o in made], expected)
    except Mismatch as error:
        row["why"] = str(error)
        return row
    if row["score_error"] > TOLERANCE:
        row["why"] = "log-probabilities differ"
    elif not same:
        row["why"] = first_difference(reference.greedy, [o["tokens"] for o in made])
    elif row["generate_error"] > TOLERANCE:
        row["why"] = "log-probabilities of generated tokens differ"
    elif reasons != reference.finish_reasons:
        row["why"] = f"finish reasons {reasons}, expected {reference.finish_reasons}"
    row["passed"] = not row["why"]
    return row


class Mismatch(Exception):
    """The program failed, or its answer does not have the promised form."""


def run(program, command, model_dir, folder, rows, *options):
    """Runs one subcommand over JSONL and returns its output rows, checked to be one for each input, in order."""
    source, target = folder / f"{command}.in.jsonl", folder / f"{command}.out.jsonl"
    source.write_text("".join(json.dumps(r) + "\n" for r in rows))
    target.unlink(missing_ok=True)
    line = [str(program), command, "--model", str(model_dir), "--input", str(source), "--output", str(target),
            "--dtype", "fp32", *options]
    try:
        done = subprocess.run(line, capture_output=True, text=True, timeout=TIMEOUT_S, stdin=subprocess.DEVNULL)
    except subprocess.TimeoutExpired:
        raise Mismatch(f"{command}: no end after {TIMEOUT_S} s") from None
    if done.returncode != 0:
        said = (done.stderr.strip() or done.stdout.strip() or "nothing").splitlines()[-1]
        raise Mismatch(f"{command}: exit {done.returncode}: {said}")
    try:
        out = [json.loads(text) for text in target.read_text().splitlines() if text.strip()]
    except (OSError, ValueError) as error:
        raise Mismatch(f"{command}: output unreadable: {error}") from None
    if [o.get("id") for o in out] != [r["id"] for r in rows]:
        raise Mismatch(f"{command}: ids {[o.get('id') for o in out]}, expected {[r['id'] for r in rows]}")
    wanted = {"score": ("logprobs",), "generate": ("tokens", "logprobs", "finish_reason")}[command]
    for o in out:
        if missing := [k for k in wanted if k not in o]:
            raise Mismatch(f"{command}: row {o['id']} lacks {', '.join(missing)}")
    return out


def largest_error(got, expected):
    worst = 0.0
    for g, e in zip(got, expected):
        if len(g) != len(e) or [x is None for x in g] != [x is None for x in e]:
            raise Mismatch(f"{len(g)} log-probabilities ({sum(x is None for x in g)} null), expected {len(e)} "
                           f"({sum(x is None for x in e)} null)")
        # A NaN must not slip through max().
        worst = max([worst] + [abs(x - y) if x == x else float("inf") for x, y in zip(g, e) if x is not None])
    return worst


def first_difference(expected, got):
    for i, (e, g) in enumerate(zip(expected, got)):
        if e != g:
            at = next((j for j, (a, b) in enumerate(zip(e, g)) if a != b), min(len(e), len(g)))
            return f"sequence {i} differs from new token {at} on: {g[at:at + 3]}, expected {e[at:at + 3]}"
    return "other number of sequences"


if __name__ == "__main__":
    main()
