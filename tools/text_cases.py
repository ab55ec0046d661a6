"""Hard inputs for tokenizers, conversations for chat templates, and templates that use each part of the language.

Only data. Every odd character is written as an escape, so that no editor can normalise or lose it.
"""

import random
import unicodedata


def texts():
    """Some 370 texts, the same for every tokenizer. Order is part of the goldens: append at the end."""
    result = [
        # Nothing, and nearly nothing.
        "", " ", "  ", "   ", "a", "A", "0", ".", "\n", "\r", "\r\n", "\t", "\n\n", "\n\n\n", "\r\n\r\n", " \n", "\n ",
        "\t\t", " \t ", "\t \n \t",
        # Plain language.
        "Hello, world!", "The quick brown fox jumps over the lazy dog.",
        "It was the best of times, it was the worst of times;", "Antidisestablishmentarianism is a long word.",
        "e.g. i.e. etc. Dr. Smith's 3rd-rate \"quote\" \u2014 isn't it?", "ALL CAPS SHOUTING", "camelCaseIdentifier",
        "snake_case_identifier", "SCREAMING_SNAKE", "kebab-case-word", "XMLHttpRequest2Handler", "iPhone15ProMax",
        # White space: the place where pre-tokenizers differ most.
        "a b", "a  b", "a   b", "a    b", " a", "  a", "   a", "a ", "a  ", "a   ", " a ", "  a  ", "a\nb", "a\n\nb",
        "a\n\n\nb", "a \nb", "a\n b", "a \n b", "a  \n  b", "a\tb", "a\t\tb", "\ta", "a\t", "a \tb", "a\t b", "a\r\nb",
        "a\r\n\r\nb", "a\rb", "\r\na", "a\r\n", " \r\n ", "a\n\t\tb", "x = 1\n    y = 2\n\n\n        z", "a\u00a0b",
        "a\u00a0\u00a0b", " \u00a0a", "a\u2003b", "a\u2028b\u2029c", "a\u3000b", "a\u0085b", "a\u000bb\u000cc",
        "a\u1680b", "a\u180eb", "a\u200bb", "a\ufeffb", "\ufeffa", "a\u202fb\u205fc", "a\u001cb\u001fc",
        " " * 17, " " * 64 + "x", "\n" * 20, "\t" * 12, (" \n" * 9), "word" + " " * 100 + "word",
        # Contractions, in both cases and with look-alikes.
        "it's don't we're I've I'm you'll he'd", "IT'S DON'T WE'RE I'VE I'M YOU'LL HE'D", "it'S Don'T We'Re",
        "it\u2019s don\u2019t", "'s 't 're", "''s", "x'sx", "rock'n'roll", "'twas", "O'Reilly's", "it'\u017f", "y'all'd've",
        "'S'T'RE", "dogs' 'quoted'", "l'\u00e9t\u00e9", "'ll", "a'LL b'Ll c'lL",
        # Numbers.
        "1", "12", "123", "1234", "12345", "1234567890", "3.14159", "1,234,567.89", "-17", "+4", "1e-10", "0x1F", "0b1011",
        "2+2=4", "x2y3", "007", "1 2 3", "12 345", "\u0661\u0662\u0663", "\u0967\u0968\u0969\u096a", "\u00bd \u00bc \u2153",
        "\u2160\u2161\u2167", "\u2460\u2461\u2473", "x\u00b2+y\u00b3", "\uff11\uff12\uff13\uff14", "1st 2nd 3rd", "2024-11-30T12:34:56Z",
        "192.168.0.1", "$1,000.00", "50%", "\u4e00\u4e8c\u4e09", "3\u00d74", "1" * 50,
        # Punctuation and symbols.
        "!", "!!", "!!!", "...", "....", "?!", "--", "---", "=====", "*" * 30, "#" * 9, "/" * 5, "a/b/c", "a//b", "\\", "\\\\n",
        "()[]{}<>", "<html><body>", "</div>\n", "&amp;&lt;", "@user #tag", "a,b;c:d", "\u00a9\u00ae\u2122", "\u20ac5 \u00a35 \u00a55",
        "\u2190\u2191\u2192\u2193", "\u2200x\u2208\u211d: x\u00b2\u22650", "\u00a1Hola! \u00bfQu\u00e9?", "\u300c\u65e5\u672c\u300d", "\u2026", "a\u2013b\u2014c", " .", " ,x", " /x", ".\n",
        "!\n\n", ")\r\n", "+\n/", "~`@#$%^&*()_+-={}[]|\\:\";'<>?,./", "_a_", "__init__", "a_1", "-a", "'a'", ".a.b", "$x", "a$",
        "\u00b7\u2022\u25cf", "\U0001f150", "\u2581\u2581x",
        # Letters of many scripts.
        "na\u00efve fa\u00e7ade co\u00f6perate", "Stra\u00dfe \u00c4\u00d6\u00dc", "\u0130stanbul \u0131\u015f\u0131k", "\u01c5 \u01c8 \u01f2", "\u02b0\u02b2\u02b7", "\u00aa\u00ba",
        "\u041f\u0440\u0438\u0432\u0435\u0442, \u043c\u0438\u0440!", "\u0393\u03b5\u03b9\u03ac \u03c3\u03bf\u03c5 \u039a\u03cc\u03c3\u03bc\u03b5", "\u05e9\u05dc\u05d5\u05dd \u05e2\u05d5\u05dc\u05dd", "\u05e9\u05b8\u05c1\u05dc\u05d5\u05b9\u05dd",
        "\u0645\u0631\u062d\u0628\u0627 \u0628\u0627\u0644\u0639\u0627\u0644\u0645", "\u0627\u0644\u0633\u0651\u064e\u0644\u0627\u0645\u064f \u0639\u064e\u0644\u064e\u064a\u0643\u0645\u060c \u0661\u0662", "\u0646\u0645\u06cc\u200c\u062e\u0648\u0627\u0647\u0645", "\u0928\u092e\u0938\u094d\u0924\u0947 \u0926\u0941\u0928\u093f\u092f\u093e",
        "\u0915\u094d\u0937\u0924\u094d\u0930\u093f\u092f \u0936\u094d\u0930\u0940", "\u0e2a\u0e27\u0e31\u0e2a\u0e14\u0e35\u0e0a\u0e32\u0e27\u0e42\u0e25\u0e01", "\u0e17\u0e35\u0e48\u0e19\u0e35\u0e48\u0e21\u0e35\u0e19\u0e49\u0e33", "\u4f60\u597d\uff0c\u4e16\u754c\uff01", "\u4f60\u597d world \u4e16\u754c", "\u65e5\u672c\u8a9e\u306e\u30c6\u30ad\u30b9\u30c8\u3067\u3059\u3002",
        "\u30ab\u30bf\u30ab\u30ca\u3068\u3072\u3089\u304c\u306a", "\uff8a\uff9d\uff76\uff78 \uff76\uff9e", "\u30fc\u30fb\u30fd", "\uc548\ub155\ud558\uc138\uc694 \uc138\uacc4", "\u1112\u1161\u11ab\u1100\u1173\u11af", "\u10d2\u10d0\u10db\u10d0\u10e0\u10ef\u10dd\u10d1\u10d0",
        "\u0531\u0562\u0561\u0580\u0587", "\u12a0\u121b\u122d\u129b", "\u1798\u17b6\u1793\u1797\u17b6\u179f\u17b6\u1781\u17d2\u1798\u17c2\u179a", "\u1019\u103c\u1014\u103a\u1019\u102c", "\u0b95\u0bcd\u0bb7 \u0ba4\u0bae\u0bbf\u0bb4\u0bcd", "\u0c24\u0c46\u0c32\u0c41\u0c17\u0c41",
        "\U00020000\U0002a6d6", "\U00010330\U00010331", "\U0001d400\U0001d41a\U0001d7d8", "\U0001e900\U0001e922", "\ufb01\ufb02 \ufb03", "\uff21\uff42\uff43",
        "\u1e9e\u00df", "\ua640\ua641", "\u3105\u3106", "\u9fa6\u9fff", "\u3040\u309f\u30a0\u30ff\u3100",
        # Combining marks and text that NFC changes.
        "e\u0301", "\u00e9", "cafe\u0301 caf\u00e9", "A\u030a \u00c5 \u212b", "\u1e9b\u0323", "o\u0302\u0303", "q\u0307\u0323", "\u0344", "\u2126 \u03a9", "\u212a", "n\u0303o",
        "\u1100\u1161 \uac00", "\u0958 \u0915\u093c", "\u0301a", " \u0301", "a\u0301\u0302\u0303\u0304\u0305", "Z\u0351\u036b\u0343a\u0363\u0326l\u0334g\u0322o\u0321", "\u2adc",
        "\u0f43 \u0fb2\u0f71\u0f80", "\u20dd1\u20dd", "1\ufe0f\u20e3",
        # Emoji.
        "\U0001f600", "\U0001f600\U0001f600", " \U0001f44d", "\U0001f44d\U0001f3fd", "\U0001f468\u200d\U0001f469\u200d\U0001f467\u200d\U0001f466", "\U0001f1eb\U0001f1f7\U0001f1e9\U0001f1ea",
        "\u2764\ufe0f", "\u2764", "\U0001f3f4\U000e0067\U000e0062\U000e0073\U000e0063\U000e0074\U000e007f", "\U0001f9d1\U0001f3ff\u200d\U0001f680", "ok\U0001f680go", "\u263a\ufe0e",
        # Replacement, private use, unassigned, control characters, what stays of bad surrogates.
        "\ufffd", "a\ufffdb", "\ufffd\ufffd", "\ue000\uf8ff", "\U0010fffd", "\ufdd0", "\u0378", "\x00", "a\x00b", "\x01\x02\x03", "\x07bell\x1b[31mred\x1b[0m", "\x7f",
        "\u0080\u009f", "\u200e\u200f\u202a\u202c", "\u00ad soft\u00adhyphen", "\u2060\u2061", "\ufff9\ufffa\ufffb",
        # Code and data.
        "def f(x):\n    return x + 1\n", "for (int i = 0; i < n; ++i) {\n\tsum += a[i];\n}", "#include <vector>\r\n\r\nint main() {}\r\n",
        "SELECT * FROM t WHERE a='b' AND c>=10;", "{\"key\": [1, 2.5, null, true], \"s\": \"\\u00e9\\n\"}", "<a href=\"https://example.com/?q=1&r=2#top\">x</a>",
        "https://example.com/path/to/page?query=1#frag", "user.name+tag@example.co.uk", "C:\\Users\\name\\file.txt", "/usr/local/bin/python3.11",
        "$\\frac{a}{b} = \\sum_{i=0}^{n} x_i^2$", "| a | b |\n|---|---|\n| 1 | 2 |\n", "- item\n  - sub\n    1. num\n", "```python\nprint('hi')\n```",
        "a=b;c==d;e===f;g!=h;i<=j;k=>l;m->n;o::p;q&&r;s||t", "\t\tif (x)\n\t\t\ty();", "R\u00e9sum\u00e9.pdf", "\\begin{align}\n  x &= y \\\\\n\\end{align}",
        # Special tokens of all five families inside text, whole, broken and doubled.
        "<|endoftext|>", "a<|endoftext|>b", "<|im_start|>user\nhi<|im_end|>\n", " <|im_end|> ", "<|im_start|><|im_start|>", "<|im_start|", "|im_start|>",
        "<think>\nhm\n</think>\n\nyes", "<tool_call>{}</tool_call>", "<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\nhi<|eot_id|>", "<|end_of_text|>",
        "<|reserved_special_token_0|>", "<\uff5cbegin\u2581of\u2581sentence\uff5c><\uff5cUser\uff5c>hi<\uff5cAssistant\uff5c>", "<\uff5cend\u2581of\u2581sentence\uff5c>", "<\uff5ctool\u2581calls\u2581begin\uff5c>",
        "<|start|>user<|message|>hi<|end|>", "<|channel|>final<|message|>x<|return|>", "<repo_name>x<file_sep>y", "<|fim_prefix|>a<|fim_suffix|>b<|fim_middle|>",
        "<|IM_START|>", "<|im_start|>\u00e9e\u0301<|im_end|>", "e<|im_end|>\u0301", "1<|im_end|>2", "a  <|im_end|>  b", "<|vision_start|><|image_pad|><|vision_end|>", "<s></s><unk><pad>",
        # Long.
        "lorem ipsum dolor sit amet " * 12, "a" * 300, "ab" * 150, "\u00e9" * 60, "\U0001f600" * 25, "\u4f60\u597d" * 30, "x1" * 60, "the" * 70, "Donaudampfschifffahrtsgesellschaftskapit\u00e4nsm\u00fctze",
        "".join(chr(97 + (7 * i * i + 3 * i) % 26) for i in range(1500)),
        "ACGT" * 60, "0123456789abcdef" * 12, "=" * 79 + "\n", "aaaa bbbb " * 15, " ".join(str(n * n) for n in range(40)),
    ]
    result += [mixed_text(seed) for seed in range(24)]
    # Bytes that SmolLM2's vocabulary lacks (0x04, 0x06, 0x13, ..., 0xf1, 0xf2): the library drops them.
    return result + ["a\x04\x05\x06b", "\x04", "\x13\x14", "\U00040001x", " \U000a0000", "a \x1d b"]


def mixed_text(seed):
    """A random string over all kinds of characters, so that borders between any two kinds occur."""
    rng = random.Random(seed)
    pools = ["abcXYZ", "aeiou", "0123456789", " ", "  ", "\n", "\t", "\r\n", ".,;:!?", "'\"", "-_/\\", "()[]{}<>|=+*&^%$#@~`",
             "\u00e9\u00fc\u00df\u0130\u017f", "\u0430\u0411\u0432", "\u4e2d\u6587\u5b57", "\u3042\u30a2\u30fc", "\u0627\u0644\u0645", "\u0915\u094d\u0937\u093f",
             "\u0e01\u0e34\u0e48", "\u0301\u0302\u200d\ufe0f", "\U0001f600\U0001f44d\U0001f3fd", "\u00bd\u2167\u0663", "\u00a0\u3000\u2003", "\u2014\u2026\u20ac"]
    text = "".join(rng.choice(rng.choice(pools)) for _ in range(rng.randrange(20, 70)))
    assert not any(unicodedata.category(c) in ("Cs", "Cn") for c in text)
    return text


WEATHER = {"type": "function", "function": {
    "name": "get_weather", "description": "Weather of a city, in \u00b0C & more <now>",
    "parameters": {"type": "object", "properties": {
        "city": {"type": "string", "description": "City's name"},
        "days": {"type": "integer", "minimum": 1, "default": 3},
        "unit": {"type": "string", "enum": ["celsius", "fahrenheit"]}}, "required": ["city"]}}}
ADD = {"type": "function", "function": {
    "name": "add", "description": "", "parameters": {"type": "object", "properties": {
        "numbers": {"type": "array", "items": {"type": "number"}}}, "required": ["numbers"]}}}


def call(name, arguments, **more):
    return {"type": "function", "function": {"name": name, "arguments": arguments}} | more


def conversations():
    """Conversations for every real template: name, messages, and maybe tools, add_generation_prompt, kwargs."""
    user, system = {"role": "user", "content": "Hi!"}, {"role": "system", "content": "Be brief."}
    bot = {"role": "assistant", "content": "Hello. How can I help?"}
    more = {"role": "user", "content": "Tell me a joke."}
    asked = {"role": "user", "content": "Weather in Paris and Lyon?"}
    sunny = {"role": "tool", "content": "{\"t\": 21.5}", "tool_call_id": "c1", "name": "get_weather"}
    rainy = {"role": "tool", "content": "{\"t\": 12}", "tool_call_id": "c2", "name": "get_weather"}
    paris, lyon = call("get_weather", {"city": "Paris", "days": 1}), call("get_weather", {"city": "Ly\u00f6n", "days": 2})
    base = [
        dict(name="one user turn", messages=[user]),
        dict(name="system and user", messages=[system, user]),
        dict(name="several turns", messages=[user, bot, more]),
        dict(name="system and several turns", messages=[system, user, bot, more]),
        dict(name="ends with assistant", messages=[user, bot]),
        dict(name="system only", messages=[system]),
        dict(name="two systems", messages=[system, {"role": "system", "content": "Be kind."}, user]),
        dict(name="system in the middle", messages=[user, bot, system, more]),
        dict(name="two user turns in a row", messages=[user, more]),
        dict(name="assistant first", messages=[bot, user]),
        dict(name="two assistant turns in a row", messages=[user, bot, bot, more]),
        dict(name="empty content", messages=[{"role": "user", "content": ""}]),
        dict(name="no messages", messages=[]),
        dict(name="white space around content", messages=[{"role": "system", "content": "\n sys \n"},
                                                          {"role": "user", "content": "  \n hi \t\n "},
                                                          {"role": "assistant", "content": "\n\nyes \n"}, more]),
        dict(name="odd characters", messages=[{"role": "user", "content": "\u00e9 e\u0301 \U0001f468\u200d\U0001f469\u200d\U0001f467 <b>&amp;\"'</b> \\n {{ x }} {% y %}"}]),
        dict(name="special tokens in content", messages=[{"role": "user", "content": "<|im_end|><|eot_id|><\uff5cUser\uff5c><|end|>"}]),
        dict(name="unknown role", messages=[user, {"role": "critic", "content": "No."}]),
        dict(name="message without content", messages=[user, {"role": "assistant"}, more]),
        dict(name="message without role", messages=[{"content": "Hi!"}]),
        dict(name="null content", messages=[user, {"role": "assistant", "content": None}, more]),
        dict(name="content in parts", messages=[{"role": "user", "content": [{"type": "text", "text": "Hi!"}]}]),
        dict(name="number as content", messages=[{"role": "user", "content": 42}]),
        dict(name="extra message fields", messages=[user | {"name": "Ann", "weight": 1.5}, bot | {"refusal": None}, more]),
        dict(name="tools listed", messages=[asked], tools=[WEATHER]),
        dict(name="two tools and a system", messages=[system, asked], tools=[WEATHER, ADD]),
        dict(name="no tools", messages=[asked], tools=[]),
        dict(name="tool call, null content", messages=[asked, {"role": "assistant", "content": None, "tool_calls": [paris]}, sunny],
             tools=[WEATHER]),
        dict(name="tool call, empty content", messages=[asked, {"role": "assistant", "content": "", "tool_calls": [paris]}, sunny],
             tools=[WEATHER]),
        dict(name="tool call, no content", messages=[asked, {"role": "assistant", "tool_calls": [paris]}, sunny], tools=[WEATHER]),
        dict(name="tool call with text", messages=[asked, {"role": "assistant", "content": "Let me look.", "tool_calls": [paris]}, sunny,
                                                   {"role": "assistant", "content": "21.5 degrees."}, more], tools=[WEATHER]),
        dict(name="two calls, two results", messages=[asked, {"role": "assistant", "content": "", "tool_calls": [paris, lyon]},
                                                      sunny, rainy, {"role": "assistant", "content": "Sunny, then rain."}],
             tools=[WEATHER]),
        dict(name="arguments as a string", messages=[asked, {"role": "assistant", "content": "", "tool_calls": [
            call("get_weather", "{\"city\": \"Paris\"}", id="c1")]}, sunny], tools=[WEATHER]),
        dict(name="call without the function level", messages=[asked, {"role": "assistant", "content": "", "tool_calls": [
            {"name": "add", "arguments": {"numbers": [1, 2.5, -3e-7, 1e22, 10**20]}}]}, sunny], tools=[ADD]),
        dict(name="nested arguments", messages=[asked, {"role": "assistant", "content": "", "tool_calls": [
            call("f", {"b": [None, True, {"\u00e9": "<&>'\"\\\n\u2028"}], "a": {}, "c": []})]}, sunny], tools=[ADD]),
        dict(name="result first", messages=[sunny, user]),
        dict(name="empty tool_calls", messages=[user, bot | {"tool_calls": []}, more]),
        dict(name="reasoning_content", messages=[user, bot | {"reasoning_content": "They greet me."}]),
        dict(name="reasoning before the last question", messages=[user, bot | {"reasoning_content": "They greet me."}, more]),
        dict(name="reasoning under its other names", messages=[user, bot | {"reasoning": "R"}, more, bot | {"thinking": "T"}]),
        dict(name="think tags in content", messages=[user, {"role": "assistant", "content": "<think>\nHm.\n</think>\n\nHello."}]),
        dict(name="think tags before the last question", messages=[
            user, {"role": "assistant", "content": "<think>\nHm.\n</think>\n\nHello."}, more]),
        dict(name="reasoning with a call", messages=[asked, {"role": "assistant", "content": "", "reasoning_content": "Use the tool.",
                                                             "tool_calls": [paris]}, sunny], tools=[WEATHER]),
        dict(name="user repeats a tool response", messages=[user, bot, {"role": "user", "content": "<tool_response>x</tool_response>"}]),
        dict(name="thinking off", messages=[user], kwargs={"enable_thinking": False}),
        dict(name="thinking on", messages=[user], kwargs={"enable_thinking": True}),
    ]
    both = {"one user turn", "several turns", "ends with assistant", "two calls, two results", "tool call, empty content"}
    result = []
    for row in base:
        for prompt in ((True, False) if row["name"] in both else (True,)):
            result.append(row | {"add_generation_prompt": prompt})
    return result


def feature_templates():
    """Small templates of our own, each for one part of the language that real templates use."""
    chat = [{"role": "system", "content": "Be <brief>."}, {"role": "user", "content": "  Hi & bye  "},
            {"role": "assistant", "content": "Yes\nno", "tags": ["b", "a", "b"], "meta": {"z": 1, "a": None, "f": 2.50}},
            {"role": "user", "content": "\u00dcber \u00e9t\u00e9 'x' \"y\"", "n": 3}]
    rows = [
        ("macro", "{% macro turn(role, text='none', sep=': ') %}[{{ role }}{{ sep }}{{ text }}]{% endmacro %}"
                  "{{ turn('a') }}{{ turn('b', 'x') }}{{ turn(text='y', role='c', sep='=') }}"),
        ("macro calls itself", "{% macro show(x, depth=0) -%}{% if x is mapping %}{{ '{' }}{% for k, v in x.items() %}{{ k }}:{{ show(v, depth + 1) }}"
                               "{% if not loop.last %},{% endif %}{% endfor %}{{ '}' }}{% elif x is string %}'{{ x }}'{% elif x is iterable %}"
                               "[{% for i in x %}{{ show(i, depth + 1) }};{% endfor %}]{% else %}{{ x }}@{{ depth }}{% endif %}{%- endmacro %}"
                               "{{ show(messages[2].meta) }} {{ show([1, ['a', {'k': none}], true]) }}"),
        ("macro with call block", "{% macro box(title) %}<{{ title }}>{{ caller() }}</{{ title }}>{% endmacro %}{% call box('b') %}in {{ messages|length }}{% endcall %}"),
        ("namespace", "{% set ns = namespace(found=false, count=0, text='') %}{% for m in messages %}{% if m.role == 'user' %}"
                      "{% set ns.count = ns.count + 1 %}{% set ns.text = ns.text ~ loop.index0 %}{% set ns.found = true %}{% endif %}{% endfor %}"
                      "{{ ns.count }} {{ ns.text }} {{ ns.found }}"),
        ("set inside a loop is lost", "{% set x = 1 %}{% for m in messages %}{% set x = x + 1 %}{{ x }}{% endfor %}{{ x }}"),
        ("set inside an if is kept", "{% set x = 1 %}{% if true %}{% set x = 2 %}{% endif %}{{ x }}"),
        ("set block", "{% set x %}a {{ messages|length }} b{% endset %}[{{ x }}]{% set y | upper %}low{% endset %}{{ y }}"),
        ("set several", "{% set a, b = 1, 'two' %}{{ a }}{{ b }}{% set (c, d) = [3, 4] %}{{ c + d }}"),
        ("loop variables", "{% for m in messages %}{{ loop.index }}{{ loop.index0 }}{{ loop.revindex }}{{ loop.revindex0 }}{{ loop.first }}{{ loop.last }}"
                           "{{ loop.length }}{{ loop.depth }}{{ loop.cycle('x', 'y') }};{% endfor %}"),
        ("loop neighbours", "{% for m in messages %}{{ loop.previtem.role if loop.previtem is defined else '-' }}>{{ m.role }}>"
                            "{{ loop.nextitem.role if not loop.last else '-' }} {% if loop.changed(m.role) %}c{% endif %}|{% endfor %}"),
        ("loop with if and else", "{% for m in messages if m.role == 'user' %}{{ loop.index }}/{{ loop.length }}:{{ m.role }} {% else %}none{% endfor %}"
                                  "{% for m in [] %}x{% else %}empty{% endfor %}"),
        ("nested loops", "{% for a in [1, 2] %}{% set outer = loop %}{% for b in 'xy' %}{{ outer.index }}{{ loop.index }}{{ b }} {% endfor %}{% endfor %}"),
        ("break and continue", "{% for m in messages %}{% if m.role == 'system' %}{% continue %}{% endif %}{{ m.role }}{% if loop.index == 3 %}{% break %}{% endif %},{% endfor %}"),
        ("recursive loop", "{% for x in [[1, [2]], [3]] recursive %}{% if x is iterable %}({{ loop(x) }}){% else %}{{ x }}{% endif %}{% endfor %}"),
        ("loop over pairs", "{% for k, v in {'a': 1, 'b': [2, 3]}.items() %}{{ k }}={{ v }};{% endfor %}{% for k in {'x': 1} %}{{ k }}{% endfor %}"
                            "{% for i, (a, b) in [(1, (2, 3))] %}{{ i }}{{ a }}{{ b }}{% endfor %}"),
        ("range", "{% for i in range(3) %}{{ i }}{% endfor %}{% for i in range(5, 0, -2) %}{{ i }}{% endfor %}{{ range(4) | list }}"),
        ("slices", "{{ messages[::-1] | map(attribute='role') | join(',') }} {{ messages[1:] | length }} {{ messages[:-1] | length }} {{ messages[-1].role }}"
                   " {{ 'abcdef'[1:4] }} {{ 'abcdef'[::-2] }} {{ 'abc'[-1] }} {{ [1, 2, 3][1:10] }} {{ 'abc'[5:] }}|"),
        ("string methods", "{{ ' a b '.strip() }}|{{ 'xxaxx'.strip('x') }}|{{ '\\n\\na'.lstrip('\\n') }}|{{ 'a..'.rstrip('.') }}|{{ 'a,b,,c'.split(',') }}|{{ ' a  b '.split() }}"
                           "|{{ 'a-b-c'.split('-', 1) }}|{{ 'a-b-c'.rsplit('-', 1) }}|{{ 'aXbX'.replace('X', '_') }}|{{ 'ab'.startswith('a') }}|{{ 'ab'.endswith('a') }}"
                           "|{{ 'aB'.upper() }}{{ 'aB'.lower() }}{{ 'a b'.title() }}{{ 'aB'.capitalize() }}|{{ ', '.join(['x', 'y']) }}|{{ 'abcb'.find('b') }}{{ 'abcb'.count('b') }}"
                           "|{{ 'a\\nb'.splitlines() }}|{{ '12'.isdigit() }}{{ 'a'.isalpha() }}{{ ' '.isspace() }}|{{ 'abc'.removeprefix('a') }}|{{ 'a=b=c'.partition('=') }}"),
        ("string methods on more letters", "{{ '\u00dcber stra\u00dfe \u00e9t\u00e9'.upper() }}|{{ '\u00c9T\u00c9 \u0130'.lower() }}|{{ '\u00e9t\u00e9 l\\'\u00e9t\u00e9'.title() }}|{{ '\u3000x\u00a0'.strip() }}|{{ '\U0001f600ab'[1:] }}|{{ '\U0001f600ab' | length }}"),
        ("filters on strings", "{{ ' a ' | trim }}|{{ 'aB' | upper }}|{{ 'aB' | lower }}|{{ 'foo bar' | title }}|{{ 'foo BAR' | capitalize }}|{{ 'abc' | length }}|{{ 'abc' | first }}{{ 'abc' | last }}"
                               "|{{ 'abc' | reverse }}|{{ 'abab' | replace('a', 'x') }}|{{ 'abab' | replace('a', 'x', 1) }}|{{ 'a\\nb' | indent(2) }}|{{ 'a\\nb' | indent(2, true) }}|{{ 'x' | default('d') }}"
                               "|{{ 'abc' | list }}|{{ 5 | string }}|{{ 'a<b' | escape }}|{{ 'a<b' | safe }}|{{ 'xxax' | trim('x') }}|{{ 'word ' * 3 | wordcount if false else 'w' }}"),
        ("filters on lists", "{% set l = [3, 1, 2, 1] %}{{ l | sort }}{{ l | sort(reverse=true) }}{{ l | unique | list }}{{ l | sum }}{{ l | min }}{{ l | max }}{{ l | first }}{{ l | last }}{{ l | join('-') }}{{ l | length }}{{ l | count }}"
                             "{{ l | reverse | list }}{{ ['b', 'A'] | sort }}{{ ['b', 'A'] | sort(case_sensitive=true) }}{{ l | batch(3) | list }}{{ l | slice(2) | list }}"),
        ("map, select, reject", "{{ messages | map(attribute='role') | list }}{{ ['a', 'b'] | map('upper') | join }}{{ [1, 2, 3, 4] | select('odd') | list }}{{ [1, 2, 3] | reject('equalto', 2) | list }}"
                                "{{ messages | selectattr('role', 'equalto', 'user') | map(attribute='content') | list }}{{ messages | rejectattr('role', 'in', ['user', 'system']) | list | length }}"
                                "{{ messages | selectattr('tags') | list | length }}{{ messages | selectattr('n', 'defined') | list | length }}{{ messages | map(attribute='n', default=0) | sum }}"),
        ("groupby and dictsort", "{% for role, group in messages | groupby('role') %}{{ role }}:{{ group | length }} {% endfor %}{{ {'b': 1, 'a': 2} | dictsort }}{{ {'b': 1, 'a': 2} | dictsort(by='value', reverse=true) }}{{ {'b': 1} | items | list }}"),
        ("numbers", "{{ 7 / 2 }} {{ 6 / 2 }} {{ 7 // 2 }} {{ -7 // 2 }} {{ -7 % 3 }} {{ 2 ** 10 }} {{ 2 ** -1 }} {{ 1.0 }} {{ 2.50 }} {{ 1e3 }} {{ 1e20 }} {{ 1e-7 }} {{ 0.1 + 0.2 }} {{ 10 ** 20 }} {{ 1_000 }} {{ -3 | abs }} {{ 3.7 | int }} {{ '12' | int + 1 }} {{ 'x' | int(9) }} {{ '1.5' | float }} {{ 2.567 | round(2) }} {{ 2.5 | round }} {{ 3.2 | round(0, 'ceil') | int }} {{ 1 == 1.0 }} {{ 5 | float }}"),
        ("logic", "{{ 1 and 'x' }} {{ 0 or 'y' }} {{ '' or none }} {{ not '' }} {{ not 0 and true }} {{ none is none }} {{ true }} {{ True }} {{ None }} {{ 'a' in 'abc' }} {{ 'z' not in ['a'] }} {{ 'k' in {'k': 1} }} {{ 1 < 2 < 3 }} {{ 3 > 2 > 2 }} {{ 'a' < 'b' }} {{ [1, 2] == [1, 2] }} {{ 'x' if false }}| {{ 'x' if 1 else 'y' }} {{ 'a' if false else 'b' if false else 'c' }}"),
        ("operators", "{{ 'a' ~ 1 ~ none ~ true ~ 1.5 }} {{ 'a' + 'b' }} {{ 'ab' * 3 }} {{ [1] + [2] }} {{ [0] * 2 }} {{ (1, 2) + (3,) }} {{ 1 + 2 * 3 }} {{ (1 + 2) * 3 }} {{ -2 ** 2 }} {{ 'a' ~ 'b' | upper }} {{ ('a' ~ 'b') | upper }} {{ '%s-%d' % ('x', 3) }} {{ '{} {}'.format(1, 'z') }} {{ '%.2f' | format(3.14159) }}"),
        ("tests", "{{ x is defined }} {{ x is undefined }} {{ none is none }} {{ 1 is number }} {{ 1 is integer }} {{ 1.0 is float }} {{ true is boolean }} {{ true is number }} {{ 'a' is string }} {{ {} is mapping }} {{ [] is sequence }} {{ 'a' is sequence }} {{ {} is iterable }} {{ 5 is iterable }} {{ 3 is odd }} {{ 4 is even }} {{ 9 is divisibleby 3 }} {{ 1 is eq 1 }} {{ 2 is gt 1 }} {{ 1 is in [1] }} {{ 'a' is upper }} {{ 'a' is lower }} {{ true is true }} {{ 1 is true }} {{ false is false }} {{ 1 is sameas 1 }} {{ range is callable }} {{ x is not defined }}"),
        ("undefined prints nothing", "[{{ x }}][{{ messages[0].nothing }}][{{ x | default('d') }}][{{ '' | default('d') }}][{{ '' | default('d', true) }}][{{ messages[99] }}]{% if x %}y{% else %}n{% endif %}{% for i in x %}i{% endfor %}"),
        ("attribute of undefined fails", "{{ x.y }}"),
        ("undefined plus string fails", "{{ 'a' + x }}"),
        ("none plus string fails", "{{ 'a' + none }}"),
        ("string plus number fails", "{{ 'a' + 1 }}"),
        ("raise_exception", "{% if messages[0].role == 'system' %}{{ raise_exception('No system turn, please: ' ~ messages[0].content) }}{% endif %}x"),
        ("raise_exception not reached", "{% if messages[0].role == 'tool' %}{{ raise_exception('no') }}{% endif %}fine"),
        ("alternating roles", "{% for m in messages %}{% if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('Roles must alternate user/assistant/user/assistant/...') }}{% endif %}{% endfor %}"),
        ("syntax error", "{% if true %}x"),
        ("unknown filter fails", "{{ 'a' | nosuchfilter }}"),
        ("division by zero fails", "{{ 1 / 0 }}"),
        ("white space control", "  {% if true %}  \n  a\n  {% endif %}\n b \n{%- if true -%}\n  c  \n{%- endif -%}\n\n d\n  {# comment #}\n e {#- x -#} \n f\n{{- ' g ' -}}\n  h\n\t{% set x = 1 %}\ni{%+ if true %} j{% endif +%}\nk\n"),
        ("lines before blocks", "a\n    {% for m in messages %}\n    {{ m.role }}\n    {% endfor %}\nz\n\n"),
        ("last newline", "{{ 'x' }}\n"),
        ("last two newlines", "x\n\n"),
        ("carriage returns", "a\r\n{% if true %}\r\nb\r\n{% endif %}\r\nc"),
        ("raw", "{% raw %}{{ not }} {% parsed %}{% endraw %}{{ '{{' }}"),
        ("string escapes", "{{ 'a\\n\\t\\\\\\'\\\"b' }}|{{ \"c\\'d\" }}|{{ '\\u00e9\\x41' }}|{{ 'a' 'b' }}|{{ '\u00e9\U0001f600' }}"),
        ("generation block", "{% for m in messages %}{% if m.role == 'assistant' %}{% generation %}{{ m.content }}{% endgeneration %}{% else %}<{{ m.role }}>{% endif %}{% endfor %}"),
        ("filter block", "{% filter upper %}a {{ messages[0].role }}{% endfilter %}"),
        ("with block", "{% with a = 1, b = 2 %}{{ a + b }}{% endwith %}[{{ a }}]"),
        ("include of given variables", "{{ bos_token }}|{{ eos_token }}|{{ tools is none }}|{{ tools is defined }}|{{ documents is none }}|{{ add_generation_prompt }}|{{ custom }}|{{ pad_token is defined }}"),
        ("strftime_now", "{{ strftime_now is defined }} {{ strftime_now('%Y-%m-%d') | length }} {{ strftime_now('%d %b %Y') | length }}"),
        ("tojson", "{{ messages[2].meta | tojson }} {{ {'b': '<&>\\'\u00e9\\n', 'a': [1, 2.0, none, true, 1e20, 1e-7]} | tojson }} {{ 'x\"y' | tojson }} {{ [] | tojson }} {{ {} | tojson }} {{ 1.0 | tojson }} {{ none | tojson }} {{ '\U0001f600\u2028' | tojson }}"),
        ("tojson with options", "{{ {'b': [1, {'c': []}], 'a': {}} | tojson(indent=2) }}\n{{ {'b': 1, 'a': 2} | tojson(sort_keys=true) }} {{ [1, {'a': 2}] | tojson(separators=(',', ':')) }} {{ '\u00e9' | tojson(ensure_ascii=true) }}"),
        ("tojson of tools", "{% for t in tools %}{{ t | tojson(indent=4) }}\n{{ t.function.parameters.properties.keys() | list }}{% endfor %}"),
        ("dictionary methods", "{% set d = {'a': 1, 'b': none} %}{{ d.get('a') }} {{ d.get('z') }} {{ d.get('z', 0) }} {{ d.keys() | list }} {{ d.values() | list }} {{ d['a'] }} {{ d.a }} {{ d.items() | list }} {{ 'a' in d }} {{ d | length }} {{ dict(x=1, y='z') }}"),
        ("key named like a method", "{% set d = {'items': [1, 2], 'keys': 'k'} %}{{ d['items'] }} {{ d.get('keys') }}"),
        ("printing of values", "{{ [1, 'a', none, true, 2.0, {'k': 'v'}] }} {{ ('t',) }} {{ {'q': \"it's\", 'r': 'a\"b', 's': 'a\\nb\u00e9\\\\'} }} {{ [[]] }} {{ 'plain' }} {{ ['\U0001f600', '\\u200b', '\\x7f'] }}"),
        ("list of content parts", "{% for m in [{'content': [{'type': 'text', 'text': 'a'}, {'type': 'image'}, {'type': 'text', 'text': 'b'}]}, {'content': 'c'}] %}{% if m.content is string %}{{ m.content }}{% else %}{% for p in m.content %}"
                                  "{% if p.type == 'text' %}{{ p['text'] }}{% elif p.type == 'image' %}<img>{% endif %}{% endfor %}{% endif %}/{% endfor %}"),
        ("changing lists is refused", "{% set l = [1] %}{{ l.append(2) }}{{ l }}"),
        ("inline comment and nesting", "{# {{ hidden }} #}{% if a is not defined and not b is defined %}{% if messages and messages | length > 2 %}x{% elif true %}y{% endif %}{% endif %}"),
        ("joiner, cycler, lipsum", "{% set c = cycler('a', 'b') %}{{ c.next() }}{{ c.next() }}{{ c.next() }}{% set j = joiner('|') %}{{ j() }}x{{ j() }}y"),
        ("unicode identifiers of the template", "{% set \u00e9t\u00e9 = 1 %}{{ \u00e9t\u00e9 }}"),
        ("long chain", "{{ messages | map(attribute='content') | map('trim') | map('length') | list | join('+') }}={{ messages | map(attribute='content') | map('trim') | join | length }}"),
        ("in a condition of a filter", "{% if messages | selectattr('role', 'eq', 'assistant') | list | length > 0 %}yes{% endif %}{% if (messages | first).role == 'system' and (messages | last)['role'] == 'user' %}!{% endif %}"),
    ]
    result = []
    for name, template in rows:
        row = {"name": name, "template": template, "messages": chat, "add_generation_prompt": True,
               "kwargs": {"custom": "given"}}
        if "tools" in name:
            row["tools"] = [WEATHER, ADD]
        result.append(row)
    return result
