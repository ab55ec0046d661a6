r"""A reward worker that scores with reasoning-gym's own scorers.

Reads one JSON object a line: id, prompt, completion, answer, and the other fields of the data row, of which it needs
`entry` (tools/make_reasoning_gym_data.py writes it). Answers each with {"id", "reward"} as soon as it is scored.
A row that cannot be scored gets 0 and a line on standard error; it never stops the worker.

A task that SmolLM2-135M-Instruct solves often enough to learn from (42 % of samples at temperature 1, and 30 % of
groups of 4 have both right and wrong answers): sums of two numbers of one or two digits, after three solved ones.
    python3 tools/make_reasoning_gym_data.py chain_sum --set max_terms=2 max_digits=2 --format prompt --shots 3

In run.toml:
    [rollout]
    max_new_tokens = 8
    stop = ["\n"]
    [reward]
    kind = "worker"
    command = ["python3", "examples/rewards/reasoning_gym_worker.py", "--extract", "line"]

--extract says which part of a completion is the answer:
    auto    what stands in <answer>...</answer>; without the tags, the first line that is not empty (default)
    tag     what stands in the last <answer>...</answer>; no tags, no reward
    line    the first line that is not empty, without a full stop at its end
    number  the last number
    whole   all of it, without white space around it
"""

import argparse
import json
import re
import sys

NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?|-?\.\d+")
TAG = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--extract", choices=("auto", "tag", "line", "number", "whole"), default="auto")
    args = parser.parse_args()
    for line in sys.stdin:
        if not line.strip():
            continue
        row_id = None
        try:
            row = json.loads(line)
            row_id = row["id"]
            reward = score(row, args.extract)
        except Exception as error:  # A bad row costs its own reward only.
            print(f"reasoning_gym_worker: row {row_id}: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
            reward = 0.0
        if row_id is not None:
            print(json.dumps({"id": row_id, "reward": reward}), flush=True)


def score(row, extract):
    # Here, not above: the first import takes two seconds, and --help need not wait for it.
    import reasoning_gym
    entry = row["entry"]
    answer = find_answer(row["completion"], extract)
    if answer is None:
        return 0.0
    return float(reasoning_gym.get_score_answer_fn(entry["metadata"]["source_dataset"])(answer, entry))


def find_answer(completion, extract):
    """The part of the completion that counts as its answer, or None."""
    if extract in ("auto", "tag"):
        found = TAG.findall(completion)
        if found:
            return found[-1].strip()
        if extract == "tag":
            return None
    if extract in ("auto", "line"):
        lines = [line.strip() for line in completion.splitlines() if line.strip()]
        return lines[0].rstrip(".") if lines else None
    if extract == "number":
        found = NUMBER.findall(completion)
        return found[-1].replace(",", "") if found else None
    return completion.strip() or None


if __name__ == "__main__":
    main()
