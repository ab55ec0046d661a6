"""Peer: tokens a second that transformers generates, with `generate` or with continuous batching.

Prompts are random ids of one length, every completion has the full length, sampling is at temperature 1. One run of
the same size comes first and does not count.

Usage: hf_generate.py [--mode generate|continuous] [--batch N] [--prompt-length N] [--new-tokens N] [model options]
"""

import argparse

import peer
import torch


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--mode", choices=("generate", "continuous"), default="generate")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--prompt-length", type=int, default=16)
    parser.add_argument("--new-tokens", type=int, default=64)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--greedy", action="store_true")
    parser.add_argument("--paged-attention", default="paged|sdpa", help="attention of the continuous mode")
    peer.add_model_options(parser)
    args = parser.parse_args()
    peer.start(args)

    from transformers import GenerationConfig
    model = peer.make_model(args).eval()
    ids = torch.randint(0, model.config.vocab_size, (args.batch, args.prompt_length))
    # No end token: every completion runs to its full length.
    config = GenerationConfig(max_new_tokens=args.new_tokens, do_sample=not args.greedy, temperature=1.0, top_k=0,
                              eos_token_id=None, pad_token_id=0)
    made = []
    if args.mode == "generate":
        model.generation_config = config
        ids = ids.to(args.device)

        def run():
            with torch.no_grad():
                out = model.generate(ids, attention_mask=torch.ones_like(ids))
            made.append(out.numel() - ids.numel())
    else:
        model.set_attn_implementation(args.paged_attention)
        prompts = ids.tolist()

        def run():
            # The kept manager spares each run the set-up of the cache, which on a CPU takes longer than the run.
            out = model.generate_batch(inputs=prompts, generation_config=config, persistent_manager=True)
            made.append(sum(len(o.generated_tokens) for o in out.values()))

    seconds = peer.measure(run, args.repeat, args.device)
    expected = args.batch * args.new_tokens
    if set(made) != {expected}:
        raise SystemExit(f"hf_generate: made {sorted(set(made))} tokens a run, expected {expected}")
    peer.report(f"transformers {args.mode}", args, model, seconds, expected, "tokens_per_s")


if __name__ == "__main__":
    main()
