"""What the peers share: the model they measure, and the one line of JSON they print."""

import json
import os
import platform
import statistics
import sys
import time
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import torch

# The default model: a Qwen3-MoE of one million parameters, small enough for two cores.
DEFAULT_FAMILY = "qwen3_moe"
DEFAULT_CONFIG = dict(hidden_size=128, intermediate_size=256, moe_intermediate_size=64, num_hidden_layers=4,
                      num_attention_heads=4, num_key_value_heads=2, head_dim=32, num_experts=8, num_experts_per_tok=2,
                      norm_topk_prob=True, max_position_embeddings=512, tie_word_embeddings=False)
LOAD_BEFORE = os.getloadavg()[0]
CHARACTERS = "0123456789+-*=() abcdefghijklmnopqrstuvwxyz?:.,\n"


def add_model_options(parser):
    parser.add_argument("--model", help="a Hugging Face folder; without it a random model")
    parser.add_argument("--family", default=DEFAULT_FAMILY, help="model_type of the random model")
    parser.add_argument("--set", nargs="*", default=[], metavar="KEY=VALUE", help="config of the random model")
    parser.add_argument("--save", help="also write model and tokenizer here, so that others can run the same")
    parser.add_argument("--dtype", choices=("fp32", "bf16"), default="fp32")
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--experts", default="grouped_mm", help="transformers' experts implementation")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--seed", type=int, default=0)


def start(args):
    # Spinning OpenMP threads that share cores with other programs lose a factor of ten and more: such a number
    # would flatter whoever is compared with it, so the load goes into the result.
    if LOAD_BEFORE > 0.5:
        print(f"peer: load average {LOAD_BEFORE:.1f}: other programs run here, do not quote these numbers",
              file=sys.stderr)
    torch.set_num_threads(args.threads)
    torch.manual_seed(args.seed)


def make_model(args):
    """The model in the wanted type on the device. A random one has the vocabulary of make_tokenizer unless --set
    says otherwise; no padding token is given a meaning, so all ids may be sampled."""
    from transformers import AutoConfig, AutoModelForCausalLM
    dtype = {"fp32": torch.float32, "bf16": torch.bfloat16}[args.dtype]
    if args.model:
        model = AutoModelForCausalLM.from_pretrained(args.model, dtype=dtype)
    else:
        config = DEFAULT_CONFIG if args.family == DEFAULT_FAMILY else {}
        config = dict(vocab_size=len(CHARACTERS) + 3, pad_token_id=0, eos_token_id=1, bos_token_id=2) | config
        for pair in args.set:
            key, _, text = pair.partition("=")
            config[key] = json.loads(text)
        with torch.device(args.device):
            model = AutoModelForCausalLM.from_config(AutoConfig.for_model(args.family, **config), dtype=dtype)
    if hasattr(model, "set_experts_implementation") and has_experts(model):
        model.set_experts_implementation(args.experts)
    model = model.to(args.device)
    if args.save:
        model.save_pretrained(args.save)
        if not args.model and model.config.vocab_size == len(CHARACTERS) + 3:
            make_tokenizer().save_pretrained(args.save)
    return model


def has_experts(model):
    return any("expert" in name for name, _ in model.named_modules())


def make_tokenizer():
    """One token a character, written as a byte-level tokenizer so that any implementation can read it."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast
    vocab = {"<pad>": 0, "<eos>": 1, "<bos>": 2}
    for char in CHARACTERS:
        # Space and newline have other names in the byte-level alphabet.
        vocab[{" ": "\u0120", "\n": "\u010a"}.get(char, char)] = len(vocab)
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<eos>", bos_token="<bos>",
                                   padding_side="left")


def measure(run, repeat, device="cpu"):
    """Seconds of each of `repeat` runs, after one that does not count."""
    seconds = []
    for i in range(repeat + 1):
        begin = time.perf_counter()
        run()
        if device == "cuda":
            torch.cuda.synchronize()
        if i:
            seconds.append(time.perf_counter() - begin)
    return seconds


def report(name, args, model, seconds, work, unit, **more):
    """One line: work done a second, from the median run, with all that is needed to run it again."""
    median = statistics.median(seconds)
    line = {"peer": name, unit: round(work / median, 2), "seconds_median": median,
            "seconds_min": min(seconds), "seconds_max": max(seconds), "runs": len(seconds)}
    if model is not None:
        line |= {"parameters": sum(p.numel() for p in model.parameters()), "family": model.config.model_type}
    line |= more | {"options": {k: v for k, v in vars(args).items() if v not in (None, [])}}
    line |= {"python": platform.python_version(), "versions": versions(), "machine": machine(),
             "load_before": LOAD_BEFORE}
    sys.stdout.flush()
    print(json.dumps(line, default=str), flush=True)


def versions():
    from importlib.metadata import version
    return {p: version(p) for p in ("torch", "transformers", "tokenizers", "trl")}


def machine():
    info = Path("/proc/cpuinfo")
    names = [l.split(":", 1)[1].strip() for l in info.read_text().splitlines() if l.startswith("model name")] \
        if info.exists() else []
    result = {"cpu": names[0] if names else platform.processor(), "cores": os.cpu_count()}
    if torch.cuda.is_available():
        result["gpu"] = torch.cuda.get_device_name()
    return result
