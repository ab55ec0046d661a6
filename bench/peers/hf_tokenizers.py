"""Peer: megabytes of text a second that the tokenizers library encodes on one thread.

The text is the given file, cut at line ends into documents of about --document-bytes; without a file, every text
file of this repository that git knows, repeated up to --megabytes.

Usage: hf_tokenizers.py --tokenizer tokenizer.json [--text FILE] [--megabytes N] [--document-bytes N] [--repeat N]
"""

import argparse
import os
import subprocess
from pathlib import Path

os.environ["RAYON_NUM_THREADS"] = "1"

import peer


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--tokenizer", required=True, type=Path, help="a tokenizer.json, or a folder with one")
    parser.add_argument("--text", type=Path)
    parser.add_argument("--megabytes", type=float, default=4)
    parser.add_argument("--document-bytes", type=int, default=4096)
    parser.add_argument("--repeat", type=int, default=5)
    args = parser.parse_args()

    from tokenizers import Tokenizer
    file = args.tokenizer / "tokenizer.json" if args.tokenizer.is_dir() else args.tokenizer
    tokenizer = Tokenizer.from_file(str(file))
    text = args.text.read_text(encoding="utf-8") if args.text else repository_text(int(args.megabytes * 1e6))
    documents = cut(text, args.document_bytes)
    num_bytes = sum(len(d.encode()) for d in documents)
    counts = []

    def run():
        counts.append(sum(len(tokenizer.encode(d, add_special_tokens=False).ids) for d in documents))

    seconds = peer.measure(run, args.repeat)
    peer.report("tokenizers encode", args, None, seconds, num_bytes / 1e6, "megabytes_per_s", bytes=num_bytes,
                documents=len(documents), tokens=counts[-1])


def repository_text(num_bytes):
    root = Path(__file__).resolve().parents[2]
    names = subprocess.run(["git", "ls-files", "*.md", "*.py", "*.h", "*.cc", "LICENSE", "*.jsonl"], cwd=root,
                           check=True, capture_output=True, text=True).stdout.split()
    text = "".join((root / n).read_text(encoding="utf-8", errors="replace") for n in names)
    return (text * (num_bytes // max(1, len(text)) + 1))[:num_bytes]


def cut(text, size):
    documents, part, length = [], [], 0
    for line in text.splitlines(keepends=True):
        part.append(line)
        length += len(line)
        if length >= size:
            documents.append("".join(part))
            part, length = [], 0
    return documents + (["".join(part)] if part else [])


if __name__ == "__main__":
    main()
