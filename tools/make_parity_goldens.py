"""Writes tests/goldens/parity/<case>/ and tests/goldens/rope.json: what transformers computes, frozen.

Each case folder holds a checkpoint as Hugging Face writes it, and golden.json:
  sequences[i]: tokens; logprobs (null first, then ln p(token | before), float32); logit_rows {position: all logits};
                greedy (up to 32 new tokens, the end token included); finish_reason.
  max_abs_logit, router_margin (smallest relative distance of a routing choice), greedy_margin (smallest distance of
  the two largest logits), gradient_loss (only with gradients.safetensors).
gradients.safetensors: gradient of the mean negative log-likelihood over all predicted tokens of all sequences, one
tensor for each tensor of the original file layout.

Usage: make_parity_goldens.py [--out DIR] [--cases WORD...]   Needs: the environment of tools/oracle_env.sh.
"""

import argparse
import json
from pathlib import Path

import torch
from safetensors.torch import save_file

import parity_cases as cases

ROOT = Path(__file__).resolve().parent.parent


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, default=ROOT / "tests" / "goldens")
    parser.add_argument("--cases", nargs="*", default=[], help="only cases whose name contains one of these words")
    parser.add_argument("--seed", type=int, default=1000)
    args = parser.parse_args()
    torch.set_num_threads(1)
    for index, case in enumerate(cases.CASES):
        if case in cases.select_cases(args.cases):
            write_case(case, args.seed + 100 * index, args.out / "parity" / case.name)
    if not args.cases:
        (args.out / "rope.json").write_text(dump({"cases": rope_goldens()}))


def write_case(case, seed, folder):
    reference = cases.make_reference(case, seed, folder)
    golden = {
        "case": case.name, "family": case.family, "covers": case.covers, "seed": reference.seed,
        "max_abs_logit": reference.max_abs_logit, "router_margin": reference.router_margin,
        "greedy_margin": reference.greedy_margin, "sequences": [],
    }
    for i, tokens in enumerate(reference.sequences):
        rows = sorted({0, len(tokens) // 2, len(tokens) - 1})
        golden["sequences"].append({
            "tokens": tokens, "logprobs": reference.logprobs[i],
            "logit_rows": {str(r): reference.logits[i][r].tolist() for r in rows},
            "greedy": reference.greedy[i], "finish_reason": reference.finish_reasons[i],
        })
    if case.gradients:
        loss, gradients = cases.gradients_by_file_name(reference.model, reference.sequences)
        names = set(cases.file_tensors(folder)) - {n for n, _ in reference.model.named_buffers()}
        assert set(gradients) == names, f"{case.name}: {set(gradients) ^ names}"
        golden["gradient_loss"] = loss
        save_file(gradients, folder / "gradients.safetensors", metadata={"format": "pt"})
    (folder / "golden.json").write_text(dump(golden))
    size = sum(f.stat().st_size for f in folder.iterdir())
    print(f"{case.name:36s} seed {reference.seed} {size / 1024:6.0f} KiB  max|logit| {reference.max_abs_logit:6.2f}"
          f"  router margin {reference.router_margin:.1e}  greedy margin {reference.greedy_margin:.1e}"
          f"  {'/'.join(reference.finish_reasons)}", flush=True)


def rope_goldens():
    """inv_freq and attention factor as transformers computes them, for the scalings of the real files and for the
    corners: no truncation, a given factor, only one of the two mscales, factor null, low = high."""
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    llama3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
              "original_max_position_embeddings": 8192}
    yarn = {"rope_type": "yarn", "factor": 40.0, "original_max_position_embeddings": 4096}
    table = [
        ("default", 16, 131072, {"rope_type": "default", "rope_theta": 1e4}),
        ("default, theta 1e6, d 128", 128, 131072, {"rope_type": "default", "rope_theta": 1e6}),
        ("linear", 16, 131072, {"rope_type": "linear", "factor": 4.0, "rope_theta": 1e4}),
        ("llama3, real", 16, 131072, llama3 | {"rope_theta": 5e5}),
        ("llama3, real, d 128", 128, 131072, llama3 | {"rope_theta": 5e5}),
        ("llama3, Llama-3.2 factor 32, d 64", 64, 131072, llama3 | {"rope_theta": 5e5, "factor": 32.0}),
        ("llama3, short", 16, 512, llama3 | {"rope_theta": 1e4, "original_max_position_embeddings": 64}),
        ("yarn, DeepSeek-V3", 16, 163840, yarn | {"rope_theta": 1e4, "mscale": 1.0, "mscale_all_dim": 1.0,
                                                  "beta_fast": 32, "beta_slow": 1}),
        ("yarn, DeepSeek-V3, d 64", 64, 163840, yarn | {"rope_theta": 1e4, "mscale": 1.0, "mscale_all_dim": 1.0,
                                                        "beta_fast": 32, "beta_slow": 1}),
        ("yarn, gpt-oss", 16, 131072, yarn | {"rope_theta": 1.5e5, "factor": 32.0, "truncate": False,
                                              "beta_fast": 32.0, "beta_slow": 1.0}),
        ("yarn, Qwen3 d 128", 128, 131072, {"rope_type": "yarn", "factor": 4.0, "rope_theta": 1e6,
                                            "original_max_position_embeddings": 32768}),
        ("yarn, mscales differ", 16, 163840, yarn | {"rope_theta": 1e4, "mscale": 0.707, "mscale_all_dim": 1.2}),
        ("yarn, one mscale only", 16, 163840, yarn | {"rope_theta": 1e4, "mscale": 0.707}),
        ("yarn, mscale_all_dim 0", 16, 163840, yarn | {"rope_theta": 1e4, "mscale": 0.707, "mscale_all_dim": 0.0}),
        ("yarn, given attention factor", 16, 163840, yarn | {"rope_theta": 1e4, "attention_factor": 1.25,
                                                             "mscale": 0.707, "mscale_all_dim": 1.0}),
        ("yarn, factor null", 16, 65536, yarn | {"rope_theta": 1e4, "factor": None}),
        ("yarn, factor below 1", 16, 4096, yarn | {"rope_theta": 1e4, "factor": 0.5}),
        ("yarn, other betas", 16, 163840, yarn | {"rope_theta": 1e4, "beta_fast": 8.0, "beta_slow": 2.0}),
        ("yarn, low = high", 16, 163840, yarn | {"rope_theta": 1e4, "beta_fast": 2.0, "beta_slow": 2.0,
                                                 "truncate": False}),
        ("yarn, O 16", 16, 64, {"rope_type": "yarn", "factor": 4.0, "rope_theta": 1e4,
                                "original_max_position_embeddings": 16}),
    ]
    results = []
    for name, dim, max_positions, parameters in table:
        with cases.quiet():
            # A valid placeholder first: some corners are outside what the class itself would accept.
            config = LlamaConfig(hidden_size=4 * dim, num_attention_heads=4, head_dim=dim,
                                 max_position_embeddings=max_positions)
            config.rope_parameters = dict(parameters)
            kind = parameters["rope_type"]
            if kind == "default":
                compute = LlamaRotaryEmbedding.compute_default_rope_parameters
            else:
                compute = ROPE_INIT_FUNCTIONS[kind]
            inv_freq, factor = compute(config)
        results.append({"name": name, "head_dim": dim, "max_position_embeddings": max_positions,
                        "rope_parameters": parameters, "inv_freq": inv_freq.tolist(), "attention_factor": factor})
    return results


def dump(value):
    """JSON with one short list a line and floats cut to the nine digits that identify a float32."""
    def short(x):
        if isinstance(x, float):
            return float(f"{x:.9g}")
        if isinstance(x, list):
            return [short(y) for y in x]
        if isinstance(x, dict):
            return {k: short(y) for k, y in x.items()}
        return x

    def flat(x):
        return json.dumps(x, separators=(",", ":"), ensure_ascii=False)

    def text(x, pad):
        if isinstance(x, dict):
            inner = ",\n".join(f"{pad} {flat(k)}: {text(v, pad + ' ')}" for k, v in x.items())
            return "{\n" + inner + "\n" + pad + "}"
        if isinstance(x, list) and x and isinstance(x[0], dict):
            return "[\n" + ",\n".join(f"{pad} {text(v, pad + ' ')}" for v in x) + "\n" + pad + "]"
        return flat(x)

    return text(short(value), "") + "\n"


if __name__ == "__main__":
    main()
