#!/usr/bin/env python3
"""Writes tokenizer_cases.jsonl: small random tokenizers that mix all supported parts of tokenizer.json, with what the
Python library (tokenizers 0.23.3) makes of random texts and ids. One tokenizer a line:

  {"tokenizer": {...}, "texts": [[text, ids, decoded, decoded without special tokens], ...], "ids": [[ids, ..., ...], ...]}

  python3 tests/text/make_tokenizer_cases.py [SEED] [COUNT] > tests/text/tokenizer_cases.jsonl

With other seeds and larger counts it is a fuzzer: give the file to text_test in QD_TOKENIZER_CASES."""
import json
import random
import sys

from tokenizers import Tokenizer

rng = random.Random(int(sys.argv[1]) if len(sys.argv) > 1 else 7)
COUNT = int(sys.argv[2]) if len(sys.argv) > 2 else 60

ALPHABET = "aabbcABé你1 23\n▁_.x'sS"
ADDED = ["<s>", "<|x|>", "ab", "é", " ", "  ", "\n", "e\u0301", "[T]", "a b", "<s", "▁z", "b", "aa"]
REGEXES = [
    r"\p{L}+", r"\s+", r"\d", r"\p{N}{1,3}", r" ?\p{L}+|\s", r"[^\s]+", "a|b", r"(?i:'s|'t)|\p{L}+", r"\s+(?!\S)|\s+", ".", "",
    "[a-c&&[^b]]+", r"\w+", r"[\p{L}&&[^é]]+", r"\b", "(?<=a)b", "^a", "$", "x*", "[[a-b]c]+", "(?:ab)+", r"\h", r"\S+", "(?i)a|B",
    "a(?i)b|c", r"\p{P}", r"[^\n]", r"\x61", r"\u0062", r"[\u4f60-\u597d]", "a{2}", "a{,2}b", r"\Aa", r"b\z", r"b\Z", "a++b?",
    "(?>a|ab)c", r"\B", "[^a[bc]]+", r"\P{L}", r"\p{^L}+", r"[\p{Lu}\p{Lt}]?[\p{Ll}]+", r"(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+"]
BEHAVIOURS = ["Isolated", "Removed", "MergedWithPrevious", "MergedWithNext", "Contiguous"]


def byte_letters():
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    spare = iter(range(256, 512))
    return [chr(b) if b in printable else chr(next(spare)) for b in range(256)]


LETTERS = byte_letters()


def chance(p):
    return rng.random() < p


def pattern(empty=True):
    if chance(0.6):
        return {"Regex": rng.choice(REGEXES if empty else REGEXES[:6])}
    return {"String": rng.choice([" ", "a", "▁", "ab", "\n", ".", "1"] + [""] * empty)}


def sequence(kind, parts, make, depth):
    return {"type": "Sequence", parts: [part for part in (make(depth + 1) for _ in range(rng.randint(0, 3))) if part]}


def normalizer(depth=0):
    r = rng.random()
    if r < 0.3:
        return None
    if r < 0.5:
        return {"type": "NFC"}
    if r < 0.62:
        return {"type": "Prepend", "prepend": rng.choice(["▁", " ", "ab"])}
    if r < 0.85 or depth > 1:
        return {"type": "Replace", "pattern": pattern(empty=False) if chance(0.5) else {"String": " "},
                "content": rng.choice(["▁", "", "x", "aa"])}
    return sequence("Sequence", "normalizers", normalizer, depth)


def pre_tokenizer(depth=0):
    r = rng.random()
    if r < 0.1 and depth == 0:
        return None
    if r < 0.4:
        return {"type": "Split", "pattern": pattern(), "behavior": rng.choice(BEHAVIOURS), "invert": chance(0.3)}
    if r < 0.55:
        return {"type": "ByteLevel", "add_prefix_space": chance(0.4), "trim_offsets": True, "use_regex": chance(0.6)}
    if r < 0.63:
        return {"type": "Digits", "individual_digits": chance(0.5)}
    if r < 0.73:
        schemes = ["always", "never"] + ["first"] * (depth == 0)
        return {"type": "Metaspace", "replacement": rng.choice("▁_"), "prepend_scheme": rng.choice(schemes), "split": chance(0.6)}
    if r < 0.78:
        return {"type": "Whitespace"}
    if r < 0.83:
        return {"type": "WhitespaceSplit"}
    if depth > 1:
        return {"type": "Digits", "individual_digits": True}
    return sequence("Sequence", "pretokenizers", pre_tokenizer, depth)


def decoder(depth=0):
    r = rng.random()
    if r < 0.1 and depth == 0:
        return None
    if r < 0.3:
        return {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}
    if r < 0.4:
        return {"type": "Metaspace", "replacement": "▁", "prepend_scheme": rng.choice(["always", "first", "never"]), "split": True}
    if r < 0.5:
        return {"type": "ByteFallback"}
    if r < 0.6:
        return {"type": "Fuse"}
    if r < 0.7:
        return {"type": "Strip", "content": rng.choice([" ", "a", "▁"]), "start": rng.randint(0, 2), "stop": 0}
    if r < 0.8 or depth > 1:
        return {"type": "Replace", "pattern": pattern() if chance(0.4) else {"String": "▁"}, "content": rng.choice([" ", "", "b"])}
    return sequence("Sequence", "decoders", decoder, depth)


def text(added):
    out = ""
    for _ in range(rng.choice([0, 1, 2, 5, 10])):
        r = rng.random()
        if r < 0.6:
            out += "".join(rng.choice(ALPHABET) for _ in range(rng.randint(1, 5)))
        elif r < 0.7:
            out += rng.choice([" ", "  ", "\t", "\n", "\u00a0", "\u3000"])
        elif r < 0.8:
            out += rng.choice(["e\u0301", "\U0001f600", "Ω", "\u212b", "ſ", "²", "ⅷ", "\u200d", "\U0001d7d8", "\u0345\u0301"])
        else:
            out += rng.choice(added or ["z"])
    return out


def model_parts():
    vocab = {}

    def add(token):
        vocab.setdefault(token, len(vocab))

    unknown = "<unk>" if chance(0.4) else None
    if unknown:
        add(unknown)
    if chance(0.25):
        for letter in LETTERS:
            if chance(0.995):
                add(letter)
    for character in sorted(set(ALPHABET)):
        if chance(0.93):
            add(character)
    fallback = chance(0.15)
    if fallback:
        for byte in range(256):
            if chance(0.998):
                add(f"<0x{byte:02X}>")
    merges = []
    known = [t for t in vocab if len(t) == 1 and (t in ALPHABET or chance(0.2))]
    for _ in range(rng.choice([0, 0, 5, 30, 60])):
        if len(known) > 1:
            left, right = rng.choice(known[-40:]), rng.choice(known[-40:])
            if len(left + right) <= 8:
                add(left + right)
                merges.append([left, right])
                known.append(left + right)
    if chance(0.3):
        add("abc")
    if chance(0.5) and not any(" " in part for merge in merges for part in merge):
        merges = [" ".join(merge) for merge in merges]
    return {"type": "BPE", "dropout": None, "unk_token": unknown, "continuing_subword_prefix": None, "end_of_word_suffix": None,
            "fuse_unk": chance(0.5), "byte_fallback": fallback, "ignore_merges": chance(0.3), "vocab": vocab, "merges": merges}


def make_tokenizer():
    model = model_parts()
    added, next_id = [], len(model["vocab"])
    for content in rng.sample(ADDED, rng.randint(0, 5)):
        number = model["vocab"].get(content)
        if number is None:
            number, next_id = next_id, next_id + 1
        added.append({"id": number, "content": content, "single_word": chance(0.3), "lstrip": chance(0.3), "rstrip": chance(0.3),
                      "normalized": chance(0.5), "special": chance(0.5)})
    return next_id, {"version": "1.0", "truncation": None, "padding": None, "added_tokens": added, "normalizer": normalizer(),
                     "pre_tokenizer": pre_tokenizer(), "post_processor": None, "decoder": decoder(), "model": model}


written = 0
while written < COUNT:
    ids_end, parts = make_tokenizer()
    if '"first"' in json.dumps(parts["pre_tokenizer"]) and "Replace" in json.dumps(parts["normalizer"]):
        continue  # Refused.
    row = {"tokenizer": parts, "texts": [], "ids": []}
    try:
        tokenizer = Tokenizer.from_str(json.dumps(parts))
    except BaseException:  # The library refuses it, or panics.
        continue

    def decoded(ids):
        return [tokenizer.decode(ids, skip_special_tokens=False), tokenizer.decode(ids, skip_special_tokens=True)]

    for _ in range(14):
        sample = text([token["content"] for token in parts["added_tokens"]])
        try:
            ids = tokenizer.encode(sample, add_special_tokens=False).ids
            row["texts"].append([sample, ids, *decoded(ids)])
        except BaseException:  # Panics where an added token would take white space twice.
            continue
    for _ in range(4):
        ids = [rng.randrange(ids_end) for _ in range(rng.randint(0, 10))]
        row["ids"].append([ids, *decoded(ids)])
    print(json.dumps(row, ensure_ascii=False, separators=(",", ":")))
    written += 1
