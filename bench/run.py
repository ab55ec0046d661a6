#!/usr/bin/env python3
"""Times Quadrille beside its peers, in turn, in one run, and prints ratios.

    bench/run.py [--build build/release] [--rounds 5] [--only grpo,generate,train,tokenizer] [--json FILE]

Run it with the Python that has the peers (`make bench` does). Each round runs ours, then theirs; a figure is the median of
the rounds' medians. Programs check their results before they time; a wrong one prints no number and fails here.
"""
import argparse
import json
import pathlib
import platform
import statistics
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
PEERS = ROOT / "bench" / "peers"
MODEL = ROOT / ".cache" / "bench-model"
TOKENIZER = ROOT / ".cache" / "tokenizers" / "qwen3"


def last_json(command):
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True, cwd=ROOT)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))} failed:\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}")
    # The peers' libraries may chat before their line; ours may spread the object over lines.
    lines = done.stdout.splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith("{"))
    return json.loads("\n".join(lines[start:]))


def peer(name, *options):
    return [sys.executable, PEERS / f"{name}.py", *options]


def text_file():
    """Four megabytes of this repository's own text: prose, code and JSON."""
    target = ROOT / ".cache" / "bench-text.txt"
    names = subprocess.run(["git", "ls-files", "*.md", "*.py", "*.h", "*.cc", "LICENSE"], cwd=ROOT, check=True,
                           capture_output=True, text=True).stdout.split()
    text = "".join((ROOT / n).read_text(encoding="utf-8", errors="replace") for n in names)
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text((text * (4_000_000 // max(1, len(text)) + 1))[:4_000_000], encoding="utf-8")
    return target


def rows(build):
    """name -> list of (label, command, key of the rate); the first is ours, the others are peers."""
    grpo = ["--prompts", 8, "--group", 8]
    # As many iterations as fill the seconds that the peer is timed for.
    ours = [build / "bench" / "bench_grpo", *grpo, "--length", 64, "--iterations", 25]
    return {
        "grpo": [("quadrille fp32", [*ours, "--dtype", "fp32"], "completion_tokens_per_second"),
                 ("quadrille bf16", [*ours, "--dtype", "bf16"], "completion_tokens_per_second"),
                 ("trl fp32", peer("trl_grpo", *grpo, "--completion-length", 64), "completion_tokens_per_s")],
        "generate": [("quadrille fp32", [build / "bench" / "bench_generate", MODEL, "--prompts", 64, "--group", 1,
                                         "--prompt-tokens", 16, "--new-tokens", 64], "tokens_per_second"),
                     ("transformers generate", peer("hf_generate", "--model", MODEL), "tokens_per_s"),
                     ("transformers continuous", peer("hf_generate", "--model", MODEL, "--mode", "continuous"),
                      "tokens_per_s")],
        "train": [("quadrille fp32", [build / "bench" / "bench_train", MODEL], "tokens_per_s"),
                  ("transformers forward+backward", peer("hf_train", "--model", MODEL), "tokens_per_s")],
        "tokenizer": [("quadrille", [build / "bench" / "bench_tokenizer", TOKENIZER, text_file()], "mb_per_s_median"),
                      ("tokenizers", peer("hf_tokenizers", "--tokenizer", TOKENIZER, "--text", text_file()),
                       "megabytes_per_s")],
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build" / "release")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", default="grpo,generate,train,tokenizer")
    parser.add_argument("--json", type=pathlib.Path)
    args = parser.parse_args()
    build = args.build.resolve()
    if not (MODEL / "config.json").exists():
        last_json(peer("hf_train", "--save", MODEL, "--repeat", 1))
    if not TOKENIZER.exists():
        subprocess.run([sys.executable, ROOT / "tools" / "fetch_tokenizers.py", "qwen3"], check=True)
    result = {"machine": platform.processor() or platform.machine(), "rounds": args.rounds,
              "commit": subprocess.run(["git", "rev-parse", "--short=10", "HEAD"], cwd=ROOT, capture_output=True,
                                       text=True).stdout.strip(), "rows": {}}
    for name, programs in rows(build).items():
        if name not in args.only.split(","):
            continue
        rates = {label: [] for label, _, _ in programs}
        for _ in range(args.rounds):
            for label, command, key in programs:
                rates[label].append(float(last_json(command)[key]))
        medians = {label: statistics.median(values) for label, values in rates.items()}
        ours = [label for label in medians if label.startswith("quadrille")]
        theirs = [label for label in medians if label not in ours]
        unit = programs[-1][2].replace("_per_s", "/s").replace("_", " ")
        print(f"\n{name} ({unit}; median of {args.rounds} rounds, lowest to highest)")
        for label, values in rates.items():
            print(f"  {label:<32} {medians[label]:>12,.1f}   ({min(values):,.1f} to {max(values):,.1f})")
        for mine in ours:
            for other in theirs:
                print(f"  {mine} is {medians[mine] / medians[other]:.2f} x {other}", flush=True)
        result["rows"][name] = {"rates": rates, "medians": medians,
                                "ratios": {f"{m} / {o}": medians[m] / medians[o] for m in ours for o in theirs}}
    if args.json:
        args.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
