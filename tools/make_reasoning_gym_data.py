"""Writes train.jsonl and test.jsonl for one reasoning-gym task, to be scored by its own scorer.

Each row has `messages` (or `prompt`), `answer`, and `entry`: all that examples/rewards/reasoning_gym_worker.py needs
to score a completion. No question occurs twice, in or across the two files.

Usage: make_reasoning_gym_data.py TASK [--out DIR] [--train N] [--test N] [--seed N] [--set key=value ...]
                                  [--format messages|prompt] [--shots N] [--system TEXT] [--suffix TEXT]
e.g.   make_reasoning_gym_data.py chain_sum --set max_terms=2 max_digits=2 --format prompt --shots 3
Needs: reasoning-gym (the environment of tools/oracle_env.sh).
"""

import argparse
import json
from pathlib import Path

import reasoning_gym


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("task", help="a reasoning-gym task, e.g. chain_sum")
    parser.add_argument("--out", type=Path, default=Path("."))
    parser.add_argument("--train", type=int, default=2000)
    parser.add_argument("--test", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--set", nargs="*", default=[], metavar="KEY=VALUE", help="settings of the task")
    parser.add_argument("--format", choices=("messages", "prompt"), default="messages")
    parser.add_argument("--shots", type=int, default=0,
                        help="solved examples before each question: turns, or with --format prompt lines")
    parser.add_argument("--system", help="a system turn, or with --format prompt the text before everything")
    parser.add_argument("--suffix", default="", help="text after the question")
    args = parser.parse_args()

    # Shots and test rows come first, so a longer train file never changes what is tested.
    entries = distinct_entries(args.task, settings(args.set), args.seed, args.shots + args.test + args.train)
    shots, entries = entries[:args.shots], entries[args.shots:]
    args.out.mkdir(parents=True, exist_ok=True)
    parts = {"test": entries[:args.test], "train": entries[args.test:]}
    for name, part in parts.items():
        with open(args.out / f"{name}.jsonl", "w", encoding="utf-8") as out:
            for i, entry in enumerate(part):
                row = {"id": f"{args.task}-{name}-{i}"} | ask(args, shots, entry["question"])
                row |= {"answer": entry["answer"], "entry": entry}
                out.write(json.dumps(row, ensure_ascii=False) + "\n")
        print(f"{args.out / name}.jsonl: {len(part)} rows")


def settings(pairs):
    """key=value pairs; a value is JSON where it reads as JSON, else text."""
    result = {}
    for pair in pairs:
        key, equals, text = pair.partition("=")
        if not equals:
            raise SystemExit(f"--set wants key=value, got {pair!r}")
        try:
            result[key] = json.loads(text)
        except ValueError:
            result[key] = text
    return result


def distinct_entries(task, config, seed, count):
    """The first `count` different questions, in rounds of that size; gives up when new ones become rare."""
    found, seen = [], set()
    for turn in range(50):
        before = len(found)
        try:
            # Most tasks draw item i from seed + i, so neighbouring seeds share nearly all their items: step far.
            dataset = reasoning_gym.create_dataset(task, seed=seed * 1_000_003 + turn * count, size=count, **config)
        except (TypeError, ValueError, AssertionError) as error:
            raise SystemExit(f"reasoning-gym refuses task {task} with {config}: {error}") from None
        for entry in dataset:
            if entry["question"] in seen or entry["answer"] is None:
                continue
            try:
                entry = json.loads(json.dumps(entry))
            except TypeError as error:
                raise SystemExit(f"task {task} cannot be kept in JSON: {error}") from None
            if dataset.score_answer(entry["answer"], entry) < 1:
                raise SystemExit(f"task {task}: its own answer does not score 1 once read back from JSON: {entry}")
            seen.add(entry["question"])
            found.append(entry)
            if len(found) == count:
                return found
        if len(found) - before < max(1, count // 200):
            break
    raise SystemExit(f"only {len(found)} different questions with these settings, {count} wanted: "
                     "ask for fewer rows or widen the settings")


def ask(args, shots, question):
    if args.format == "prompt":
        solved = "".join(f"{e['question']}{args.suffix} {e['answer']}\n" for e in shots)
        return {"prompt": (args.system or "") + solved + question + args.suffix}
    turns = [{"role": "system", "content": args.system}] if args.system else []
    for e in shots:
        turns += [{"role": "user", "content": e["question"] + args.suffix},
                  {"role": "assistant", "content": e["answer"]}]
    return {"messages": turns + [{"role": "user", "content": question + args.suffix}]}


if __name__ == "__main__":
    main()
