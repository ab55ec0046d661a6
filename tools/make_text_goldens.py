"""Writes tests/goldens/text: what the tokenizers library and transformers' template renderer make of hard inputs.

tests/goldens/text/README.md says what each file holds. The tokenizers themselves come from fetch_tokenizers.py.

Usage: make_text_goldens.py [--out DIR]     Needs: the environment of tools/oracle_env.sh.
"""

import argparse
import json
import logging
import random
from pathlib import Path

import jinja2
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast

import text_cases
from fetch_tokenizers import NAMES
from fetching import CACHE, ROOT


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, default=ROOT / "tests" / "goldens" / "text")
    out = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)
    # The library warns about texts longer than a model's context; these are not meant for a model.
    logging.getLogger("transformers").setLevel(logging.ERROR)
    for name in NAMES:
        folder = CACHE / "tokenizers" / name
        if not (folder / "tokenizer.json").exists():
            raise SystemExit(f"no {folder}: run tools/fetch_tokenizers.py first")
        library = Tokenizer.from_file(str(folder / "tokenizer.json"))
        write(out / f"tokenize.{name}.jsonl", [tokenize_row(library, text) for text in text_cases.texts()])
        write(out / f"decode.{name}.jsonl", decode_rows(library))
        config = json.loads((folder / "tokenizer_config.json").read_text())
        if config.get("chat_template"):
            renderer = make_renderer(library, config)
            write(out / f"chat.{name}.jsonl", [render(renderer, row) for row in text_cases.conversations()])
    renderer = PreTrainedTokenizerFast(tokenizer_object=library, bos_token="<s>", eos_token="</s>")
    write(out / "chat.features.jsonl", [render(renderer, row) for row in text_cases.feature_templates()])


def tokenize_row(library, text):
    ids = library.encode(text, add_special_tokens=False).ids
    row = {"text": text, "ids": ids}
    decoded = library.decode(ids, skip_special_tokens=False)
    skipped = library.decode(ids, skip_special_tokens=True)
    # Most are equal, and left out to keep the files small.
    if decoded != text:
        row["decoded"] = decoded
    if skipped != decoded:
        row["decoded_skip"] = skipped
    return row


def decode_rows(library):
    """Ids that no text gives: cut in the middle of a character, single bytes, random ids."""
    sources = ["\U0001f468\u200d\U0001f469\u200d\U0001f467 ok", "\u4f60\u597d\u4e16\u754c", "caf\u00e9 \u0928\u092e\u0938\u094d\u0924\u0947", "\U00020000\U0001e900x"]
    lists = []
    for text in sources:
        ids = library.encode(text, add_special_tokens=False).ids
        lists += [ids[:n] for n in range(1, len(ids) + 1)] + [ids[n:] for n in range(1, min(len(ids), 4))]
    rng = random.Random(3)
    known = sorted(library.get_vocab(with_added_tokens=True).values())
    lists += [[rng.choice(known) for _ in range(rng.randrange(1, 9))] for _ in range(30)]
    # The 256 single-byte tokens in other orders give every kind of broken UTF-8.
    byte_ids = [i for i in known if (t := library.id_to_token(i)) and len(t) == 1][:256]
    lists += [[rng.choice(byte_ids) for _ in range(rng.randrange(1, 9))] for _ in range(30)]
    lists += [[], [known[-1]]]
    rows = []
    for ids in lists:
        row = {"ids": ids, "decoded": library.decode(ids, skip_special_tokens=False)}
        skipped = library.decode(ids, skip_special_tokens=True)
        rows.append(row if skipped == row["decoded"] else row | {"decoded_skip": skipped})
    return rows


def make_renderer(library, config):
    def content(token):
        return token["content"] if isinstance(token, dict) else token

    names = ("bos_token", "eos_token", "pad_token", "unk_token")
    special = {n: content(config[n]) for n in names if config.get(n)}
    return PreTrainedTokenizerFast(tokenizer_object=library, chat_template=config["chat_template"], **special)


def render(renderer, row):
    more = {key: row[key] for key in ("tools", "add_generation_prompt") if key in row}
    if "template" in row:
        more["chat_template"] = row["template"]
    try:
        text = renderer.apply_chat_template(row["messages"], tokenize=False, **more, **row.get("kwargs", {}))
        return row | {"text": text}
    except Exception as error:  # Whatever a template can do wrong is part of the golden.
        # Only raise_exception's text is a promise; the rest is the wording of Python or jinja2.
        kind = "raise_exception" if type(error) is jinja2.TemplateError else type(error).__name__
        return row | {"error": str(error), "error_kind": kind}


def write(file, rows):
    text = "".join(json.dumps(row, ensure_ascii=False, separators=(",", ":")) + "\n" for row in rows)
    # JSON lets these stand bare, but some readers take them for line ends.
    for char in ("\u2028", "\u2029", "\u0085"):
        text = text.replace(char, f"\\u{ord(char):04x}")
    file.write_text(text, encoding="utf-8")
    errors = sum("error" in row for row in rows)
    print(f"{file.name:28s} {len(rows):4d} rows, {file.stat().st_size / 1024:5.0f} KiB"
          + (f", {errors} errors" if errors else ""))


if __name__ == "__main__":
    main()
