"""The parity cases: tiny random checkpoints of every model family, and what transformers computes from them.

tools/make_parity_goldens.py freezes them into tests/goldens/parity; tools/parity.py makes them afresh, with any
seed, and holds the quadrille program against a live transformers. A case is made so that each rule that could be
got wrong changes the numbers: weights are large, norm weights are not 1, biases are not 0, and sequences are
longer than windows and original context lengths.

Invariant: a case is well conditioned. A checkpoint whose routing or greedy choice hangs on less than float32
rounding is thrown away and made again from the next seed, so a difference is always a mistake, never a near tie.
"""

import contextlib
import json
import shutil
from dataclasses import dataclass, field
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

VOCAB = 97
# Far from every class default, and from the fixed 1e-6 of DeepSeek's inner norms.
EPS = 3e-3
GREEDY_TOKENS = 32
# Relative distance between the last chosen and the first unchosen expert. Float32 noise reaches about 1e-6.
MIN_ROUTER_MARGIN = 5e-5
# Distance between the two largest logits at every greedy step. Float32 noise reaches about 2e-5.
MIN_GREEDY_MARGIN = 2e-3


@dataclass
class Case:
    name: str
    family: str
    covers: str
    config: dict
    lengths: tuple = (5, 19, 31)
    std: float = 0.22
    # How it is saved.
    dtype: torch.dtype = torch.float32
    fused: bool = False  # Version-5 layout: all experts of a layer in one 3-D tensor.
    shard_size: str | None = None  # e.g. "40KB"; None is one file.
    # How config.json is rewritten after saving.
    old_config: bool = False  # Names from before version 5: rope_theta, rope_scaling, torch_dtype.
    drop: tuple = ()  # Keys that files of this family are known to lack.
    set_keys: dict = field(default_factory=dict)
    # Rarer traits.
    untie: bool = False  # The flag says tied, the file holds two different tensors: both count.
    extra_layer: bool = False  # A multi-token-prediction layer after the last one, to be skipped.
    stop: bool = False  # End tokens are chosen so that greedy decoding of some sequences stops early.
    gradients: bool = False


def qwen3_moe(**changes):
    return dict(hidden_size=32, intermediate_size=24, moe_intermediate_size=12, num_hidden_layers=2,
                num_attention_heads=4, num_key_value_heads=2, head_dim=16, num_experts=5, num_experts_per_tok=3,
                norm_topk_prob=True, max_position_embeddings=128, rms_norm_eps=EPS,
                rope_parameters=rope(1e6)) | changes


def mixtral(**changes):
    return dict(hidden_size=32, intermediate_size=14, num_hidden_layers=2, num_attention_heads=4,
                num_key_value_heads=2, num_local_experts=7, num_experts_per_tok=2, max_position_embeddings=128,
                rms_norm_eps=EPS, rope_parameters=rope(1e6)) | changes


def olmoe(**changes):
    return dict(hidden_size=32, intermediate_size=12, num_hidden_layers=2, num_attention_heads=4,
                num_experts=8, num_experts_per_tok=3, norm_topk_prob=False, max_position_embeddings=128,
                rms_norm_eps=EPS, rope_parameters=rope(1e4)) | changes


def qwen2_moe(**changes):
    return dict(hidden_size=32, intermediate_size=24, moe_intermediate_size=12, shared_expert_intermediate_size=20,
                num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, num_experts=6,
                num_experts_per_tok=2, norm_topk_prob=False, max_position_embeddings=128, rms_norm_eps=EPS,
                rope_parameters=rope(1e6)) | changes


def deepseek_v3(**changes):
    return dict(hidden_size=32, intermediate_size=24, moe_intermediate_size=6, num_hidden_layers=3,
                num_attention_heads=4, num_key_value_heads=4, q_lora_rank=12, kv_lora_rank=10, qk_nope_head_dim=8,
                qk_rope_head_dim=8, v_head_dim=6, n_routed_experts=12, n_shared_experts=1, n_group=4, topk_group=2,
                num_experts_per_tok=3, first_k_dense_replace=1, norm_topk_prob=True, routed_scaling_factor=2.5,
                max_position_embeddings=128, rms_norm_eps=EPS, num_nextn_predict_layers=0,
                rope_parameters=rope(1e4)) | changes


def llama(**changes):
    return dict(hidden_size=32, intermediate_size=44, num_hidden_layers=2, num_attention_heads=4,
                num_key_value_heads=2, max_position_embeddings=128, rms_norm_eps=EPS,
                rope_parameters=rope(5e5)) | changes


def qwen3(**changes):
    return dict(hidden_size=32, intermediate_size=44, num_hidden_layers=2, num_attention_heads=4,
                num_key_value_heads=2, head_dim=12, max_position_embeddings=128, rms_norm_eps=EPS,
                rope_parameters=rope(1e6)) | changes


def rope(theta, kind="default", **more):
    return {"rope_type": kind, "rope_theta": theta} | more


# Original lengths that put the border of the scaled frequencies in the middle of these small heads.
YARN = dict(factor=4.0, original_max_position_embeddings=2048)
LLAMA3 = dict(factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=64)
LONG = (11, 29, 47)

CASES = [
    Case("qwen3_moe_base", "qwen3_moe", "5 experts top-3, head_dim 16 with hidden/heads 8, GQA, renormalised",
         qwen3_moe()),
    Case("qwen3_moe_dense_mix", "qwen3_moe",
         "decoder_sparse_step 2 and mlp_only_layers leave one MoE layer of four; attention bias; not renormalised",
         qwen3_moe(num_hidden_layers=4, decoder_sparse_step=2, mlp_only_layers=[1], num_experts=6,
                   num_experts_per_tok=2, norm_topk_prob=False, attention_bias=True, head_dim=8)),
    Case("qwen3_moe_fused_window", "qwen3_moe", "fused expert tensors on disk; window of 7 on all layers; top-1",
         qwen3_moe(use_sliding_window=True, sliding_window=7, num_experts=6, num_experts_per_tok=1,
                   norm_topk_prob=False), lengths=LONG, fused=True),
    Case("qwen3_moe_tied_sharded_bf16", "qwen3_moe", "tied, bfloat16 file in several shards, 6 query heads on 2",
         qwen3_moe(hidden_size=24, num_attention_heads=6, head_dim=8, tie_word_embeddings=True),
         dtype=torch.bfloat16, shard_size="12KB"),
    Case("qwen3_moe_yarn_old_config", "qwen3_moe", "rope_theta and rope_scaling of type yarn at the top level",
         qwen3_moe(rope_parameters=rope(1e4, "yarn", **YARN), max_position_embeddings=8192), lengths=LONG,
         old_config=True),
    Case("qwen3_moe_gradients", "qwen3_moe", "small case with gradients of every parameter",
         qwen3_moe(hidden_size=16, moe_intermediate_size=6, num_attention_heads=3, num_key_value_heads=1, head_dim=8,
                   num_experts_per_tok=2), gradients=True),
    Case("mixtral_base", "mixtral", "7 experts top-2, head_dim null in the file, theta 1e6", mixtral(),
         set_keys={"head_dim": None}),
    Case("mixtral_window_sharded", "mixtral", "window of 6, one kv head, head_dim 12 with hidden/heads 8, top-3",
         mixtral(sliding_window=6, num_key_value_heads=1, head_dim=12, num_experts_per_tok=3, num_local_experts=5),
         lengths=LONG, shard_size="40KB"),
    Case("mixtral_fused_linear_old_config", "mixtral", "fused expert tensors; linear RoPE scaling in the old place",
         mixtral(rope_parameters=rope(1e4, "linear", factor=3.0), intermediate_size=36, num_local_experts=3),
         fused=True, old_config=True),
    Case("olmoe_base", "olmoe", "no GQA, top-3 of 8 not renormalised, norm over the whole projection", olmoe(),
         set_keys={"num_key_value_heads": None}),
    Case("olmoe_clip", "olmoe", "clip_qkv, GQA, renormalised, 5 experts, attention bias, old config",
         olmoe(clip_qkv=1.1, num_key_value_heads=2, num_experts=5, norm_topk_prob=True, attention_bias=True),
         old_config=True),
    Case("qwen2_moe_base", "qwen2_moe", "gated shared expert, q/k/v bias with no qkv_bias key, old config",
         qwen2_moe(), old_config=True, drop=("qkv_bias",)),
    Case("qwen2_moe_window", "qwen2_moe",
         "window of 6 on the even layers below max_window_layers 3, no layer_types in the file, no bias, dense layers",
         qwen2_moe(hidden_size=24, num_hidden_layers=5, use_sliding_window=True, sliding_window=6, max_window_layers=3,
                   qkv_bias=False, norm_topk_prob=True, decoder_sparse_step=2, num_experts=5,
                   num_experts_per_tok=3), lengths=LONG, drop=("layer_types",), shard_size="40KB"),
    Case("deepseek_v3_base", "deepseek_v3",
         "q_lora, 12 experts in 4 groups of which 2 are kept, correction bias, one dense layer first", deepseek_v3()),
    Case("deepseek_v3_yarn", "deepseek_v3",
         "no q_lora, yarn with mscale 1 and mscale_all_dim 0.8 in old names, one group, not renormalised, attention "
         "bias, two shared experts, and a multi-token-prediction layer to skip",
         deepseek_v3(q_lora_rank=None, n_routed_experts=5, n_group=1, topk_group=1, norm_topk_prob=False,
                     attention_bias=True, n_shared_experts=2, num_hidden_layers=2, max_position_embeddings=8192,
                     num_nextn_predict_layers=1,
                     rope_parameters=rope(1e4, "yarn", mscale=1.0, mscale_all_dim=0.8, beta_fast=32.0,
                                          beta_slow=1.0, **YARN)),
         lengths=LONG, old_config=True, extra_layer=True),
    Case("deepseek_v3_fused_half_split_bf16", "deepseek_v3",
         "rope_interleave false, no dense layer, fused expert tensors, bfloat16 file with a float32 router",
         deepseek_v3(rope_interleave=False, first_k_dense_replace=0, num_hidden_layers=2, qk_nope_head_dim=10,
                     qk_rope_head_dim=6, v_head_dim=7, n_routed_experts=9, n_group=3, topk_group=2,
                     num_experts_per_tok=4), dtype=torch.bfloat16, fused=True),
    Case("deepseek_v3_gradients", "deepseek_v3", "small case with gradients of every parameter",
         deepseek_v3(hidden_size=16, num_attention_heads=2, num_key_value_heads=2, num_hidden_layers=2,
                     intermediate_size=14, n_routed_experts=6, n_group=3, topk_group=2, num_experts_per_tok=2),
         gradients=True),
    Case("llama_llama3_rope", "llama", "rope_type llama3 in rope_parameters, GQA, untied",
         llama(rope_parameters=rope(1e4, "llama3", **LLAMA3), head_dim=16), lengths=LONG),
    Case("llama_tied_biases_old_config", "llama", "tied with one tensor, attention and MLP bias, old linear scaling",
         llama(tie_word_embeddings=True, attention_bias=True, mlp_bias=True,
               rope_parameters=rope(1e4, "linear", factor=2.0)), old_config=True, drop=("head_dim",)),
    Case("llama_untied_stop", "llama", "flag says tied but the file holds two tensors; list of end tokens is hit",
         llama(tie_word_embeddings=True, num_key_value_heads=4), untie=True, stop=True),
    Case("qwen3_tied", "qwen3", "tied, head_dim 12 with hidden/heads 8", qwen3(tie_word_embeddings=True)),
    Case("qwen3_window_sharded_bf16", "qwen3",
         "window of 5 from layer max_window_layers 1 on, no layer_types in the file, attention bias, shards, bfloat16",
         qwen3(num_hidden_layers=3, use_sliding_window=True, sliding_window=5, max_window_layers=1,
               attention_bias=True), lengths=LONG, drop=("layer_types",), dtype=torch.bfloat16, shard_size="16KB"),
    Case("qwen3_layer_types", "qwen3", "layer_types overrides max_window_layers; yarn with a given attention factor",
         qwen3(num_hidden_layers=3, use_sliding_window=True, sliding_window=6, max_window_layers=3,
               layer_types=["sliding_attention", "full_attention", "sliding_attention"], max_position_embeddings=8192,
               rope_parameters=rope(1e4, "yarn", attention_factor=1.3, **YARN)), lengths=LONG),
]


@dataclass
class Reference:
    """A checkpoint that was written, and everything transformers says about it."""
    seed: int
    model: torch.nn.Module
    sequences: list  # of token lists
    logits: list  # one [T, V] float32 tensor a sequence
    logprobs: list  # one list a sequence, None first
    greedy: list  # new tokens, one list a sequence
    finish_reasons: list
    router_margin: float
    greedy_margin: float

    @property
    def max_abs_logit(self):
        return max(float(l.abs().max()) for l in self.logits)


def select_cases(names):
    """The cases whose name contains one of the given words; all of them if none is given."""
    if not names:
        return CASES
    chosen = [c for c in CASES if any(n in c.name for n in names)]
    missing = [n for n in names if not any(n in c.name for c in CASES)]
    if missing:
        raise SystemExit(f"no parity case contains {', '.join(missing)}; there are: "
                         + ", ".join(c.name for c in CASES))
    return chosen


def make_reference(case, seed, folder, tries=40):
    """Writes the case's checkpoint into the folder and runs it, moving to the next seed while it is ill-conditioned."""
    for attempt in range(tries):
        if folder.exists():
            shutil.rmtree(folder)
        reference = run_reference(case, seed + attempt, folder)
        if reference.router_margin >= MIN_ROUTER_MARGIN and reference.greedy_margin >= MIN_GREEDY_MARGIN \
                and set(reference.finish_reasons) == ({"stop", "length"} if case.stop else {"length"}):
            return reference
    raise RuntimeError(f"{case.name}: no well-conditioned checkpoint in {tries} seeds from {seed}")


def run_reference(case, seed, folder):
    generator = torch.Generator().manual_seed(seed)
    write_checkpoint(case, generator, folder)
    model = load_eager(folder)
    # Fixed shapes for the weights, then the tokens: the same seed gives the same bytes on every machine.
    sequences = [torch.randint(0, VOCAB, (n,), generator=generator).tolist() for n in case.lengths]
    margins = []
    logits, logprobs, greedy, reasons = [], [], [], []
    with watch_topk(margins):
        if case.stop:
            choose_end_tokens(model, sequences, folder)
        for tokens in sequences:
            lp, full = score(model, tokens)
            logits.append(full)
            logprobs.append(lp)
            new, reason = continue_greedily(model, tokens)
            greedy.append(new)
            reasons.append(reason)
    # One more pass over prompt and continuation gives the distance to the runner-up at each step.
    gaps = []
    for tokens, new in zip(sequences, greedy):
        _, full = score(model, tokens + new)
        top = full[len(tokens) - 1:-1].topk(2, dim=-1).values
        gaps.append(float((top[:, 0] - top[:, 1]).min()))
    return Reference(seed, model, sequences, logits, logprobs, greedy, reasons, min(margins, default=1.0), min(gaps))


def load_eager(folder):
    """Loads with the slow, exact implementations: the fast ones round in another order, which can flip experts."""
    from transformers import AutoModelForCausalLM
    with quiet():
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager",
                                                     experts_implementation="eager", local_files_only=True)
    return model.eval()


def score(model, tokens):
    """Log-probability of each token given those before it (None first), and all logits, in float32."""
    with torch.no_grad():
        logits = model(torch.tensor([tokens]), use_cache=False).logits[0].float()
    table = torch.log_softmax(logits, dim=-1)
    return [None] + [float(table[i - 1, t]) for i, t in enumerate(tokens) if i], logits


def continue_greedily(model, tokens):
    ids = torch.tensor([tokens])
    with torch.no_grad(), quiet():
        out = model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False,
                             max_new_tokens=GREEDY_TOKENS)[0, len(tokens):].tolist()
    ends = model.generation_config.eos_token_id
    ends = [ends] if isinstance(ends, int) else (ends or [])
    return out, "stop" if out[-1] in ends else "length"


def choose_end_tokens(model, sequences, folder):
    """Makes two tokens of the greedy path end tokens, so that decoding stops in the middle for some sequences."""
    model.generation_config.eos_token_id = None  # The whole path, even where the usual end token lies on it.
    path = [continue_greedily(model, tokens)[0] for tokens in sequences[:2]]
    ends = [path[0][9], path[1][20]]
    model.generation_config.eos_token_id = ends
    file = folder / "generation_config.json"
    text = json.loads(file.read_text()) | {"eos_token_id": ends}
    file.write_text(json.dumps(text, indent=2, sort_keys=True) + "\n")


def write_checkpoint(case, generator, folder):
    from transformers import AutoConfig, AutoModelForCausalLM
    config = AutoConfig.for_model(case.family, vocab_size=VOCAB, eos_token_id=0, bos_token_id=None,
                                  pad_token_id=None, **case.config)
    config.tie_word_embeddings = case.config.get("tie_word_embeddings", False) and not case.untie
    with quiet():
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
        randomise(model, case.std, generator)
        to_file_dtype(model, case.dtype)
        model.save_pretrained(folder, save_original_format=not case.fused, max_shard_size=case.shard_size or "5GB")
    rewrite_config(case, folder)
    if case.extra_layer:
        add_prediction_layer(folder, config.num_hidden_layers)


def randomise(model, std, generator):
    """Draws every parameter. Norm weights spread around 1, biases and matrices around 0, routers wider."""
    with torch.no_grad():
        for name, p in list(model.named_parameters()) + list(model.named_buffers()):
            if "inv_freq" in name:
                continue
            noise = torch.randn(p.shape, generator=generator)
            if "norm" in name:
                p.copy_(1 + 0.3 * noise)
            elif name.endswith("e_score_correction_bias"):
                p.copy_(0.3 * noise)
            elif name.endswith("bias"):
                p.copy_(0.4 * noise)
            elif name.endswith("gate.weight"):
                p.copy_(0.4 * noise)
            elif "embed_tokens" in name or "lm_head" in name:
                p.copy_(0.5 * noise)
            else:
                p.copy_(std * noise)


def to_file_dtype(model, dtype):
    """Casts all but what transformers itself keeps in float32 inside a bfloat16 checkpoint."""
    if dtype == torch.float32:
        return
    for name, p in list(model.named_parameters()) + list(model.named_buffers()):
        strict = model.config.model_type == "deepseek_v3" and \
            (name.endswith("e_score_correction_bias") or name.endswith("mlp.gate.weight"))
        if not strict and "inv_freq" not in name:
            p.data = p.data.to(dtype)
    model.config.dtype = dtype


def rewrite_config(case, folder):
    file = folder / "config.json"
    config = json.loads(file.read_text())
    # The version would change these files with every update of the oracle.
    config.pop("transformers_version", None)
    if case.old_config:
        scaling = config.pop("rope_parameters")
        config["rope_theta"] = scaling.pop("rope_theta")
        kind = scaling.pop("rope_type")
        config["rope_scaling"] = None if kind == "default" else scaling | {"type": kind}
        config["torch_dtype"] = config.pop("dtype", "float32")
        config.pop("layer_types", None)
        if case.family == "qwen3_moe":
            config["num_experts"] = config.pop("num_local_experts")
    for key in case.drop:
        config.pop(key, None)
    config |= case.set_keys
    if case.untie:
        config["tie_word_embeddings"] = True
    file.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")
    file = folder / "generation_config.json"
    text = json.loads(file.read_text())
    text.pop("transformers_version", None)
    file.write_text(json.dumps(text, indent=2, sort_keys=True) + "\n")


def add_prediction_layer(folder, index):
    """Appends a layer as the official DeepSeek file has it: whole names, but no part of the model."""
    file = folder / "model.safetensors"
    tensors = load_file(file)
    with safe_open(file, "pt") as f:
        metadata = f.metadata()
    last = f"model.layers.{index - 1}."
    extra = {name.replace(last, f"model.layers.{index}."): torch.full_like(t, 7.0)
             for name, t in tensors.items() if name.startswith(last + "self_attn") or name.startswith(last + "input")}
    width = tensors["model.norm.weight"].shape[0]
    extra |= {f"model.layers.{index}.{part}.weight": torch.full((width,), 7.0) for part in ("enorm", "hnorm")}
    extra[f"model.layers.{index}.eh_proj.weight"] = torch.full((width, 2 * width), 7.0)
    extra[f"model.layers.{index}.shared_head.norm.weight"] = torch.full((width,), 7.0)
    save_file(tensors | extra, file, metadata=metadata)


def file_tensors(folder):
    """All tensors of a checkpoint by name, from its one file or its shards."""
    tensors = {}
    for file in sorted(Path(folder).glob("*.safetensors")):
        tensors |= load_file(file)
    return tensors


def gradients_by_file_name(model, sequences):
    """Mean negative log-likelihood of all predicted tokens of all sequences, and its gradient for each tensor of
    the original file layout: fused expert tensors are cut into one 2-D gradient an expert and projection."""
    model.zero_grad()
    count = sum(len(t) - 1 for t in sequences)
    loss = 0.0
    for tokens in sequences:
        ids = torch.tensor([tokens])
        table = torch.log_softmax(model(ids, use_cache=False).logits[0, :-1].float(), dim=-1)
        part = -table.gather(1, ids[0, 1:, None]).sum() / count
        part.backward()
        loss += float(part.detach())
    result = {}
    for name, p in model.named_parameters():
        grad = torch.zeros_like(p) if p.grad is None else p.grad
        if name.endswith("experts.gate_up_proj"):
            for e in range(grad.shape[0]):
                gate, up = grad[e].chunk(2, dim=0)
                result[name.replace("gate_up_proj", f"{e}.gate_proj.weight")] = gate.contiguous()
                result[name.replace("gate_up_proj", f"{e}.up_proj.weight")] = up.contiguous()
        elif name.endswith("experts.down_proj"):
            for e in range(grad.shape[0]):
                result[name.replace("down_proj", f"{e}.down_proj.weight")] = grad[e].contiguous()
        else:
            result[name] = grad
    return loss, result


@contextlib.contextmanager
def watch_topk(margins):
    """Notes, for each routing choice made inside, the relative distance between the last chosen and the next one."""
    original = torch.topk

    def topk(values, k, dim=-1, **kwargs):
        if k < values.shape[dim]:
            ranked = original(values.detach().float(), k + 1, dim=dim).values
            last, following = ranked.select(dim, k - 1), ranked.select(dim, k)
            gap = (last - following) / last.abs().clamp_min(1e-6)
            margins.append(float(gap[torch.isfinite(gap)].min()) if torch.isfinite(gap).any() else 1.0)
        return original(values, k, dim=dim, **kwargs)

    torch.topk = topk
    try:
        yield
    finally:
        torch.topk = original


@contextlib.contextmanager
def quiet():
    """Silences transformers' progress bars and its warnings about deliberately odd files."""
    from transformers.utils import logging
    level = logging.get_verbosity()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
