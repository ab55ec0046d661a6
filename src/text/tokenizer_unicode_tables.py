#!/usr/bin/env python3
"""Writes tokenizer_unicode_tables.inc: where the Unicode data of our libraries (PCRE2, utf8proc: any version
from 14 to 18) differs from what the `tokenizers` library does, found by asking that library.

  python3 src/text/tokenizer_unicode_tables.py > src/text/tokenizer_unicode_tables.inc

Needs the packages tokenizers and unicodedata2 (18.0) beside a Python whose unicodedata is version 14
(3.11), the oldest version that PCRE2 may have here."""
import unicodedata as oldest
import unicodedata2 as newest

from tokenizers import Regex, normalizers, pre_tokenizers

CODE_POINTS = [c for c in range(0x110000) if not 0xD800 <= c <= 0xDFFF]
CATEGORIES = ("Lu Ll Lt Lm Lo Mn Mc Me Nd Nl No Pc Pd Ps Pe Pi Pf Po Sm Sc Sk So Zs Zl Zp Cc Cf Co "
              "Cn").split()
# What stands in for a character: the same general category and the same number of bytes, known since
# Unicode 14 and unlikely to be named by a pattern.
STAND_INS = {
    ("Ll", 2): 0x0292, ("Cn", 2): 0x0378,
    ("Lu", 3): 0x1E00, ("Ll", 3): 0x1E01, ("Lo", 3): 0x1200, ("Lm", 3): 0x1D2C, ("Mn", 3): 0x1DC0,
    ("Mc", 3): 0x0903, ("Po", 3): 0x2E00, ("So", 3): 0x2B00, ("Cf", 3): 0x2060, ("Cn", 3): 0xFDD0,
    ("Lu", 4): 0x10400, ("Ll", 4): 0x10428, ("Lm", 4): 0x16B40, ("Lo", 4): 0x10280,
    ("Mn", 4): 0x10A01, ("Mc", 4): 0x11000, ("Nd", 4): 0x104A0, ("No", 4): 0x10107,
    ("Po", 4): 0x10100, ("Pd", 4): 0x10EAD, ("Sm", 4): 0x1D6C1, ("So", 4): 0x10137,
    ("Cf", 4): 0x110BD, ("Cn", 4): 0x1FFFE,
}
HAN_STAND_IN = 0x20000


def matches(pattern):
    """All code points that the library's regular expressions match with this pattern."""
    split = pre_tokenizers.Split(Regex(pattern), "removed", invert=True)
    found, text = set(), "".join(map(chr, CODE_POINTS))
    for begin in range(0, len(text), 20000):
        for piece, _ in split.pre_tokenize_str(text[begin:begin + 20000]):
            found.update(map(ord, piece))
    return found


def ranges(pairs):
    """[(code point, value)] in order -> [(first, last, value)]."""
    out = []
    for code, value in pairs:
        if out and out[-1][1] == code - 1 and out[-1][2] == value:
            out[-1][1] = code
        else:
            out.append([code, code, value])
    return out


def stand_ins():
    category = {c: name for name in CATEGORIES for c in matches(r"\p{%s}" % name)}
    han = matches(r"\p{Han}")
    pairs = []
    for c in CODE_POINTS:
        wanted = category.get(c, "Cn")
        if wanted == oldest.category(chr(c)) == newest.category(chr(c)) and c != 0x180E:
            continue  # U+180E: PCRE2 counts it as a space, Unicode does not since 6.3.
        size = len(chr(c).encode())
        pairs.append((c, HAN_STAND_IN if c in han and size == 4 else STAND_INS[wanted, size]))
    return ranges(pairs)


def unknown_to_normalizer():
    nfd = normalizers.NFD().normalize_str
    unknown, known_parts, new_pairs = set(), set(), []
    for c in CODE_POINTS:
        char = chr(c)
        order = newest.combining(char)
        if order:
            text = "a" + ("\u0301" + char if order == 1 else char + "\u0334")
            expected = "a" + (char + "\u0301" if order == 1 else "\u0334" + char)
            if newest.normalize("NFD", char) == char and order != 230 and nfd(text) != expected:
                unknown.add(c)
            elif order == 230 and nfd("a" + char + "\u0316") != newest.normalize("NFD", "a" + char + "\u0316"):
                unknown.add(c)
        parts = newest.decomposition(char)
        if parts and not parts.startswith("<"):
            parts = [int(p, 16) for p in parts.split()]
            if nfd(char) == char:
                unknown.add(c)
                new_pairs.append(parts)
            else:
                known_parts.update(parts)
    for parts in new_pairs:
        fresh = [p for p in parts if p not in known_parts]
        assert fresh, parts
        unknown.update(fresh)
    return ranges([(c, 0) for c in sorted(unknown)])


def numbers():
    """Digits asks Rust's char::is_numeric, whose Unicode is newer than that of the patterns."""
    digits = pre_tokenizers.Digits(individual_digits=True)
    patterns = matches(r"\p{N}")
    extra = []
    for c in CODE_POINTS:
        if (len(digits.pre_tokenize_str("a" + chr(c) + "a")) > 1) != (c in patterns):
            assert c not in patterns
            extra.append((c, 0))
    return ranges(extra)


def rows(name, kind, lines):
    print(f"constexpr {kind} {name}[] = {{")
    line = "   "
    for item in lines:
        if len(line) + len(item) > 98:
            print(line)
            line = "   "
        line += " " + item
    print(line + "\n};")


print("// Written by tokenizer_unicode_tables.py, which says what the tables are. Code points, both ends included.")
rows("kStandIns", "StandIn", [f"{{0x{a:X}, 0x{b:X}, 0x{v:X}}}," for a, b, v in stand_ins()])
rows("kUnknownToNormalizer", "CodeRange", [f"{{0x{a:X}, 0x{b:X}}}," for a, b, _ in unknown_to_normalizer()])
rows("kNumbersBeyondPatterns", "CodeRange", [f"{{0x{a:X}, 0x{b:X}}}," for a, b, _ in numbers()])
