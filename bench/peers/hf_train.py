"""Peer: tokens a second of a forward and a backward pass in transformers (no optimizer step).

Usage: hf_train.py [--batch N] [--length N] [--repeat N] [model options]
"""

import argparse

import peer
import torch


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--forward-only", action="store_true")
    peer.add_model_options(parser)
    args = parser.parse_args()
    peer.start(args)

    model = peer.make_model(args).train()
    ids = torch.randint(0, model.config.vocab_size, (args.batch, args.length), device=args.device)

    def run():
        if args.forward_only:
            with torch.no_grad():
                model(ids, use_cache=False)
            return
        model.zero_grad(set_to_none=True)
        # float32 log-softmax over shifted logits: what a policy-gradient loss needs, no more.
        logits = model(ids, use_cache=False).logits[:, :-1].float()
        torch.nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten()).backward()

    seconds = peer.measure(run, args.repeat, args.device)
    peer.report("transformers " + ("forward" if args.forward_only else "forward+backward"), args, model, seconds,
                args.batch * args.length, "tokens_per_s")


if __name__ == "__main__":
    main()
