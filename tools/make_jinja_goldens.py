#!/usr/bin/env python3
"""Makes tests/goldens/text/jinja.jsonl: small templates and what Python's jinja2 makes of them.

Needs jinja2 alone, set up as transformers sets it up for chat templates. The first row holds the variables
that all cases share; every other row is {"template", "text"} or {"template", "error"}, with "spans" (bytes)
where {% generation %} marks something. Run it again after adding a case; nothing is edited by hand.
"""
import copy
import datetime
import json
import pathlib

import jinja2
import jinja2.ext
from jinja2.sandbox import ImmutableSandboxedEnvironment

VARIABLES = {
    "a": 1, "b": -3, "f": 2.5, "t": True, "n": None, "s": "Hello World", "e": "",
    "u": "Größe – “ß” 😀", "w": "  pad\n", "l": [3, 1, 2], "ls": ["b", "A", "c", "a"], "el": [],
    "d": {"x": 1, "y": [1, 2], "role": "user"}, "digits": "42",
    "ms": [{"role": "system", "content": "sys <b>"}, {"role": "user", "content": "hi", "n": 2},
           {"role": "assistant", "content": "yo"}],
    "tree": [{"v": 1, "sub": [{"v": 2, "sub": []}, {"v": 3, "sub": [{"v": 4, "sub": []}]}]}, {"v": 5, "sub": []}],
}
NOW = datetime.datetime(2025, 7, 4, 13, 5)

VALUES = ["s", "u", "w", "e", "a", "b", "f", "t", "n", "l", "ls", "el", "d", "ms", "digits", "nope"]

FILTERS = [
    "upper", "lower", "title", "capitalize", "trim", "length", "first", "last", "list", "string", "int", "float",
    "abs", "tojson", "reverse|list", "join('-')", "default('D')", "default('D', true)", "replace('l', 'L')",
    "sort", "unique|list", "indent(2, true)", "tojson(indent=2)", "escape", "sum", "min", "max", "round(1)",
    "items|list", "dictsort", "select|list", "map('string')|join('|')", "batch(2)|list", "wordcount",
]
METHODS = [
    "upper()", "split()", "split('l', 1)", "rsplit(maxsplit=1)", "strip()", "lstrip('H')", "startswith('H')",
    "endswith(('d', 'x'))", "replace('o', '0', 1)", "find('o')", "title()", "capitalize()", "splitlines()", "zfill(14)",
    "center(15, '*')", "partition(' ')", "count('l')", "isdigit()", "isalpha()", "format(1)", "join(['a', 'b'])",
]
CONTAINER_METHODS = [
    "get('x')", "get('q', 'none')", "items()|list", "keys()|list", "values()", "index(1)", "count(1)", "append(1)",
    "pop()", "copy()", "upper()",
]
TESTS = [
    "defined", "none", "string", "number", "integer", "float", "boolean", "mapping", "sequence", "iterable", "odd",
    "true", "false", "lower", "upper", "callable", "in [1, 2, none]", "eq 1", "sameas none", "divisibleby 3",
]
EXPRESSIONS = """
1 + 2 * 3 ** 2 - 7 // 2 % 3
-7 // 2, -7 % 3, 7 // -2, 7 % -3, -7.5 // 2, -7.5 % 2
1 / 2, 4 / 2, 2 ** -1, 2 ** 0.5, 1e16, 1e15, 1e-5, 0.0001, 1.0, -0.0, 123456789012345680.0
9007199254740993 + 1, 10 ** 20, 0x1F, 0b101, 0o17, 1_000, 1.5e3
1 / 0
'a' ~ 1 ~ none ~ true ~ 1.5 ~ [1, 'x'] ~ {'k': (1,)}
'a' + 'b' * 3, [1] + [2] * 2, (1,) + (2, 3)
'a' + 1
1 < 2 < 3, 1 < 3 < 2, 'a' < 'b', [1, 2] < [1, 3], 1 == 1.0 == true
1 < 'a'
1 in l, 'ell' in s, 'x' in d, 'q' not in d, none in [none], 1 in {1: 2}
1 in 5
not a, not e, a and e, e or 'fallback', a or s, nope and a, nope or 'x'
'yes' if a else 'no', 'yes' if e else 'no', 'x' if false
'x' if nope is defined else 'undefined'
s[0], s[-1], s[1:4], s[::-1], s[-3:], s[:100], s[5:2], s[8:2:-2], u[1], u[-1], u[2:6], u[::-1]
l[0], l[-1], l[1:], l[::-1], l[::2], l[5], ms[-1].content, ms[0]['role'], ms[1].nope
d.x, d['x'], d.items, d['items']
nope.x
n.x, n['x'], a.x, s.nope, l.nope
(ms | map(attribute='content') | list), (ms | map(attribute='n', default=0) | list)
ms | selectattr('role', 'equalto', 'user') | map(attribute='content') | first
ms | rejectattr('n') | list | length, ms | selectattr('n', 'defined') | list
ms | groupby('role') | map('first') | list, ms | sort(attribute='role') | map(attribute='role') | join(',')
ls | sort, ls | sort(case_sensitive=true), ls | sort(reverse=true), ls | unique | list, ls | map('upper') | list
d | dictsort(reverse=true), d | tojson, d | tojson(sort_keys=true), ms | tojson(indent=1)
u | tojson, u | tojson(ensure_ascii=true), '<&>\\'' | tojson, '\\x00\\x1f\\x7f\\u2028"\\\\' | tojson
[1, 2.0, 1e20, -0.5, none, true, [], {}, {1: 2, none: 3, 1.5: 4}] | tojson(indent='\\t')
[1, 2] | tojson(separators=(',', ':')), (1, 2) | tojson
nope | tojson
'%s=%d %5.2f|%-5s|%05d %x %%' | format('k', 3, 2.5, 'ab', 42, 255), '%(a)s' % {'a': 1}, '%r' % 'q'
'%d' % 'x'
'{} {} {0}'.format(1, 2)
'{:>8}|{:<6}|{:^7}|{:08.3f}|{:+d}|{:,}|{:x}|{:%}'.format('a', 'b', 'c', 3.14159, 5, 1234567, 255, 0.25)
'{a} {b[0]} {b[1]!r} {{}}'.format(a=1, b=['x', 'y'])
range(3) | list, range(5, 1, -2) | list, range(3), range(3)[1], range(10)[2:5] | list
range(1000000)
dict(a=1, b=2), dict([['k', 'v']]), namespace(a=1), {'a': 1}.get('a'), dict(d, z=3)
l.append(4)
d.update({'q': 1})
s.__class__, d.pop
strftime_now('%d %b %Y'), strftime_now('%Y-%m-%d %H:%M')
raise_exception('told you: ' ~ s)
'a\\tb\\\\n\\x41\\u00e9\\'"' ~ "it's", ['it\\'s', "q\\"", 'both\\'"', '\\n\\t\\x07\\u200b😀']
"  x\\n y  ".split('\\n'), 'a,b,,c'.split(','), ' a  b '.split(), ' a  b c '.split(none, 1), ' a b c '.rsplit(none, 1)
'straße'.upper(), 'ΑΣ'.lower(), 'İ'.lower(), 'ǅ'.title(), 'hello wORLD'.swapcase(), "they're bill's" | title
'42' | int, '0x1f' | int(base=16), ' 7 ' | int, '3.7' | int, 'x' | int(9), none | int(3), 3.99 | int, '1_0' | int
'1e3' | float, 'x' | float(1.5), 2.5 | round, 3.5 | round, 2.675 | round(2), 42.55 | round(1, 'floor'), 7 | round(-1)
'a\\nb\\n\\nc' | indent, 'a\\nb' | indent('> ', first=true), 'a b c d e f' | truncate(7, leeway=0), 'abc' | center(9)
('<a>' | safe) + '<b>', ('<a>' | escape) ~ '<b>', '<' | escape | string
[] | first, [] | last, [] | max, '' | first
[[1, 2], [3, 4]] | sum(start=[]), ms | sum(attribute='n')
cycler('a', 'b').next(), joiner('|')() ~ 'x'
loop
""".strip().split("\n")

STATEMENTS = [
    "{% for x in l %}{{ loop.index }}/{{ loop.length }}:{{ x }}{% if not loop.last %}, {% endif %}{% endfor %}",
    "{% for x in l %}{{ loop.index0 }}{{ loop.revindex }}{{ loop.first }}{{ loop.previtem }}{{ loop.nextitem }};"
    "{% endfor %}",
    "{% for x in el %}x{% else %}empty{% endfor %}{% for x in nope %}{% else %}none{% endfor %}",
    "{% for x in l if x > 1 %}{{ loop.index }}{{ x }}{{ loop.length }} {% endfor %}",
    "{% for k, v in d.items() %}{{ k }}={{ v }};{% endfor %}{% for k in d %}{{ k }}{% endfor %}",
    "{% for x in range(9) %}{% if x == 2 %}{% continue %}{% endif %}{% if x > 4 %}{% break %}{% endif %}{{ x }}"
    "{% endfor %}",
    "{% for x in [1] %}{% break %}{% else %}else runs{% endfor %}",
    "{% for n in tree recursive %}{{ n.v }}@{{ loop.depth }}({{ loop(n.sub) }}){% endfor %}",
    "{% for x in l %}{{ loop.cycle('a', 'b') }}{{ loop.changed(x > 1) }} {% endfor %}",
    "{% set x = 1 %}{% for i in l %}{% set x = i %}{{ x }}{% endfor %}{{ x }}",
    "{% set ns = namespace(x=1) %}{% for i in l %}{% set ns.x = ns.x + i %}{% endfor %}{{ ns.x }}{{ ns.y }}",
    "{% for i in l %}{{ late }}{% endfor %}{% set late = 1 %}{{ late }}",
    "{% for i in l %}{{ s }}{% endfor %}{% set s = 1 %}{{ s }}",
    "{% if false %}{% set s = 1 %}{% endif %}{{ s }}{% for i in [1] %}{% if i %}{% set s = 2 %}{% endif %}{{ s }}"
    "{% endfor %}{{ s }}",
    "{% set x, y = 1, 'b' %}{{ x }}{{ y }}{% set x = x, %}{{ x }}",
    "{% set x %}a {{ s }}{% endset %}[{{ x }}]{% set y | upper %}{{ s }}{% endset %}[{{ y }}]",
    "{% set d.x = 1 %}",
    "{% macro m(x, y=2, z=x) %}<{{ x }}{{ y }}{{ z }}{{ varargs }}{{ kwargs }}>{% endmacro %}"
    "{{ m(1) }}{{ m(1, 3) }}{{ m(1, z=5, q=6) }}{{ m(1, 2, 3, 4) }}{{ m() }}",
    "{% macro m(x) %}{{ x }}{% endmacro %}{{ m(1, 2) }}",
    "{% macro m(x) %}{{ x }}{% endmacro %}{{ m(y=2) }}",
    "{% macro m() %}{{ s }}{{ late }}{% endmacro %}{% set late = 'L' %}{{ m() }}{% set s = 'changed' %}{{ m() }}",
    "{% macro f(n) %}{{ n }}{% if n > 0 %}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(3) }}",
    "{% macro m() %}[{{ caller('c') }}]{% endmacro %}{% call(x) m() %}{{ x }}{{ s }}{% endcall %}",
    "{% with x = 1, y = a %}{{ x }}{{ y }}{% endwith %}{{ x }}",
    "{% filter upper %}abc {{ s }}{% endfilter %}",
    "{% if a == 2 %}2{% elif a == 1 %}1{% else %}0{% endif %}{% if nope %}x{% endif %}",
    "a\n{% if true %}\nb\n{% endif %}\nc\n",
    "a  \n  {% if true %}  \n  b\n  {%- endif %}\n c {%- if true -%}  \n d {% endif +%}\ne",
    "  {{ a }}\n  {#- gone -#}\n x {# gone #}\ny\n   {# gone #}\nz",
    "x\n  {%+ if true %}kept{% endif %}\n\t{% if true %}tab{% endif %}",
    "{{- '  a  ' -}}   b   {{ 'c' }}\n\n",
    "{% raw %}{{ a }} {% if %}{% endraw %}{%- raw -%}  x  {%- endraw -%}  y",
    "a\r\nb\rc\n{{ 'x\r\ny' }}",
    "{% generation %}answer {{ s }}{% endgeneration %} é {% generation %}ß{% endgeneration %}",
    "{% for m in ms %}{% if m.role == 'assistant' %}{% generation %}{{ m.content }}{% set x = 1 %}{% endgeneration %}"
    "{{ x }}{% else %}{{ m.content }}{% endif %}{% endfor %}",
    "{% for x in l %}", "{% if %}{% endif %}", "{{ }}", "{{ a b }}", "{{ 'open }}", "{{ (1 }}", "{{ a | nofilter }}",
    "{{ a is notest }}", "{% endif %}", "{% unknown %}", "{# open", "{{ a.b.( }}", "{% set 1 = 2 %}", "{% break %}",
    "{% if false %}{{ a | nofilter }}{% endif %}fine",
]


class Marks(jinja2.ext.Extension):
    """transformers' {% generation %}: a call block whose place in the text is noted."""

    tags = {"generation"}

    def __init__(self, environment):
        super().__init__(environment)
        self.blocks, self.spans = [], []
        environment.extend(marks=self)

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_mark"), [], [], body).set_lineno(line)

    def _mark(self, caller):
        text = caller()
        begin = len("".join(self.blocks).encode())
        self.spans.append([begin, begin + len(text.encode())])
        return text


def environment():
    def tojson(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    def raise_exception(message):
        raise jinja2.exceptions.TemplateError(message)

    env = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Marks, jinja2.ext.loopcontrols])
    env.filters["tojson"] = tojson
    env.globals.update(raise_exception=raise_exception, strftime_now=NOW.strftime)
    return env


def answer(env, template):
    env.marks.blocks, env.marks.spans = [], []
    try:
        # A copy, since `list | indent` changes its input.
        for block in env.from_string(template).generate(copy.deepcopy(VARIABLES)):
            env.marks.blocks.append(block)
        row = {"template": template, "text": "".join(env.marks.blocks)}
        if env.marks.spans:
            row["spans"] = env.marks.spans
        return row
    except Exception as error:  # Any failure is an answer.
        return {"template": template, "error": str(error)}


def main():
    templates = ["{{ %s | %s }}" % (v, f) for f in FILTERS for v in VALUES]
    templates += ["{{ %s.%s }}" % (v, m) for m in METHODS for v in ["s", "u", "w", "e", "digits"]]
    templates += ["{{ %s.%s }}" % (v, m) for m in CONTAINER_METHODS for v in ["l", "d", "n"]]
    templates += ["{{ %s is %s }}{{ %s is not %s }}" % (v, t, v, t) for t in TESTS for v in VALUES]
    templates += ["{{ %s }}" % e for e in EXPRESSIONS] + STATEMENTS
    env = environment()
    rows = [answer(env, template) for template in templates]
    rows = [row for row in rows if " at 0x" not in row.get("text", "")]
    path = pathlib.Path(__file__).parent.parent / "tests/goldens/text/jinja.jsonl"
    with open(path, "w", encoding="utf-8") as out:
        for row in [{"variables": VARIABLES}, *rows]:
            out.write(json.dumps(row, ensure_ascii=False, separators=(",", ":")) + "\n")
    print(len(rows), "cases,", sum("error" in row for row in rows), "of them errors:", path.name)


if __name__ == "__main__":
    main()
