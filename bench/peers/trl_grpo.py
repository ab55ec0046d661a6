"""Peer: seconds an iteration of GRPO in TRL (generation, reward, loss, step) on a small model.

Every completion has the full length, since the end token is held back (not with --continuous, which cannot). The
first iteration is warm-up and does not count. The reward is the share of digits, which costs nothing.

Usage: trl_grpo.py [--steps N] [--prompts N] [--group N] [--completion-length N] [--continuous] [model options]
"""

import argparse
import random
import sys
import tempfile
import time

import peer


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--steps", type=int, default=6, help="iterations, the first of which is not counted")
    parser.add_argument("--prompts", type=int, default=8)
    parser.add_argument("--group", type=int, default=8, help="completions of each prompt")
    parser.add_argument("--completion-length", type=int, default=64)
    parser.add_argument("--micro-batch", type=int, default=0, help="completions a backward pass (0: all)")
    parser.add_argument("--continuous", action="store_true", help="generate with continuous batching")
    peer.add_model_options(parser)
    args = parser.parse_args()
    if args.steps < 2:
        parser.error("--steps must be at least 2: the first is not counted")
    peer.start(args)

    from datasets import Dataset
    from transformers import AutoTokenizer, TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    model = peer.make_model(args)
    tokenizer = AutoTokenizer.from_pretrained(args.model) if args.model else peer.make_tokenizer()
    rng = random.Random(args.seed)
    prompts = [{"prompt": f"{rng.randint(0, 99)}+{rng.randint(0, 99)}="} for _ in range(4096)]

    def share_of_digits(completions, **_):
        return [sum(c.isdigit() for c in text) / max(1, len(text)) for text in completions]

    ends = []

    class Clock(TrainerCallback):
        def on_step_end(self, *_, **__):
            ends.append(time.perf_counter())

    batch = args.prompts * args.group
    micro = args.micro_batch or batch
    held = {"min_new_tokens": args.completion_length}
    with tempfile.TemporaryDirectory() as folder:
        config = GRPOConfig(
            output_dir=folder, per_device_train_batch_size=micro, gradient_accumulation_steps=batch // micro,
            num_generations=args.group, max_completion_length=args.completion_length, max_steps=args.steps,
            generation_kwargs={} if args.continuous else held, use_transformers_continuous_batching=args.continuous,
            temperature=1.0, beta=0.0, learning_rate=1e-4, use_cpu=args.device == "cpu", bf16=args.dtype == "bf16",
            logging_steps=1, report_to=[], save_strategy="no", disable_tqdm=True, seed=args.seed)
        trainer = GRPOTrainer(model=model, reward_funcs=share_of_digits, args=config,
                              train_dataset=Dataset.from_list(prompts), processing_class=tokenizer,
                              callbacks=[Clock()])
        # The trainer prints a log line a step; standard output is for the one line at the end.
        stdout, sys.stdout = sys.stdout, sys.stderr
        try:
            trainer.train()
        finally:
            sys.stdout = stdout
    seconds = [b - a for a, b in zip(ends, ends[1:])]
    lengths = [l["completions/mean_length"] for l in trainer.state.log_history if "completions/mean_length" in l][1:]
    # Continuous batching cannot hold the end token back, so count the tokens that were really made.
    mean_length = sum(lengths) / len(lengths)
    peer.report("trl grpo", args, model, seconds, batch * mean_length, "completion_tokens_per_s",
                iteration_s=[round(s, 4) for s in seconds], mean_completion_length=mean_length)


if __name__ == "__main__":
    main()
