"""Forms of answers (src/grammar): JSON schemas by the official suite and by jsonschema, expressions by Python's re and
by PCRE2.

MPK_SCHEMAS is how many random schemas are tried (default 150), and half of how many expressions; the bar is 10,000.
"""

import collections
import ctypes
import ctypes.util
import decimal
import itertools
import json
import os
import re
import subprocess
import tarfile

import jsonschema
import pytest
import support

SUITE = support.ROOT / ".cache" / "jsonschema-4.23.0.tar.gz"
decimal.getcontext().prec = 2000  # of remainders that the validator takes of long numbers
N_SCHEMAS = int(os.environ.get("MPK_SCHEMAS", "150"))
# Files of the suite that are about something else: formats as mere annotations, metaschemas from elsewhere.
APART = {"format", "vocabulary"}


class Probe:
    def __init__(self):
        self.process = subprocess.Popen([str(support.BUILD / "tests" / "grammar_probe")], stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, text=True, encoding="utf-8")

    def ask(self, kind, source, **more):
        source = source if isinstance(source, str) else json.dumps(source, ensure_ascii=False)
        self.process.stdin.write(json.dumps({"kind": kind, "source": source, **more}) + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())


@pytest.fixture(scope="module")
def probe():
    p = Probe()
    yield p
    p.process.stdin.close()
    assert p.process.wait() == 0


# ---- the official test suite ----

def spellings(value):
    """The texts that a value may have: members in any order, whole numbers without a point."""
    if isinstance(value, dict):
        items = list(value.items())
        for order in itertools.permutations(items) if len(items) <= 4 else [items, items[::-1]]:
            for inner in itertools.product(*[list(itertools.islice(spellings(v), 6)) for _, v in order]):
                yield {k: v for (k, _), v in zip(order, inner)}
    elif isinstance(value, list) and len(value) < 6:
        for inner in itertools.product(*[list(itertools.islice(spellings(v), 6)) for v in value]):
            yield list(inner)
    elif isinstance(value, float) and value.is_integer() and abs(value) <= 2**53:
        yield int(value)
    else:
        yield value


def texts_of(value):
    return [json.dumps(v, ensure_ascii=False) for v in itertools.islice(spellings(value), 200)]


def groups():
    with tarfile.open(SUITE) as archive:
        for member in archive.getmembers():
            found = re.search(r"/json/tests/draft2020-12/(\w[\w-]*)\.json$", member.name)
            if found and found[1] not in APART:
                for group in json.load(archive.extractfile(member)):
                    yield found[1], group


@pytest.mark.skipif(not SUITE.exists(), reason="./dev setup fetches the test suite")
def test_official_suite(probe):
    """What is taken is taken right: every valid instance can be written, no invalid one."""
    wrong, taken = [], collections.Counter()
    for name, group in groups():
        texts = [texts_of(t["data"]) for t in group["tests"]]
        answer = probe.ask("json_schema", group["schema"], texts=sum(texts, []))
        if "error" in answer:
            impossible = "contradicts itself" in answer["error"]
            assert impossible or (" at " in answer["error"] and answer["status"] == 5), answer
            wrong += [(name, t["description"]) for t in group["tests"] if impossible and t["valid"]]
            continue
        taken[name] += 1
        fits = iter(answer["fits"])
        for test, spelled in zip(group["tests"], texts):
            if any([next(fits) for _ in spelled]) != test["valid"]:
                wrong.append((name, group["description"], test["description"]))
    assert not wrong
    assert sum(taken.values()) >= 140, taken


# ---- random schemas, driven from random logits ----

def random_schema(r, depth=0):
    kinds = ["string", "integer", "number", "boolean", "null", "enum", "array", "object", "anyOf", "const", "types"]
    kind = r.choice(kinds[:6] if depth > 2 else kinds)
    if kind == "string":
        return {"type": "string", **r.choice([
            {}, {"minLength": 2, "maxLength": 6}, {"maxLength": 40}, {"pattern": "^[a-c]{1,3}\\d*$"},
            {"pattern": "x|\"y"}, {"format": "date"}, {"format": "uuid"}, {"format": "ipv4"}])}
    if kind in ("integer", "number"):
        low = round(r.uniform(-2000, 2000), r.choice([0, 1, 3]))
        high = round(low + r.choice([1, 7, 300, 12345.678]), 3)
        return {"type": kind, **r.choice([
            {}, {"minimum": low}, {"maximum": high}, {"minimum": low, "maximum": high},
            {"exclusiveMinimum": low, "maximum": high}, {"exclusiveMaximum": high}, {"multipleOf": 7}])}
    if kind == "enum":
        return {"enum": r.sample([1, "a", None, True, 2.5, "ab\"", [1, 2], {"k": "v"}], 3)}
    if kind == "const":
        return {"const": r.choice(["x", 3, {"a": [None]}])}
    if kind == "array":
        least = r.randrange(3)
        return {"type": "array", "items": random_schema(r, depth + 1), "minItems": least,
                "maxItems": least + r.randrange(4), **r.choice([{}, {"prefixItems": [random_schema(r, depth + 1)]}])}
    if kind == "anyOf":
        return {"anyOf": [random_schema(r, depth + 1) for _ in range(2)]}
    if kind == "types":
        return {"type": ["string", "null", "integer"], "minLength": 1, "maximum": 50}
    if kind != "object":
        return {"type": kind}
    names = r.sample(["a", "ab", "b\"c", "é", "long name"], r.randrange(1, 5))
    return {"type": "object", "properties": {n: random_schema(r, depth + 1) for n in names},
            "required": r.sample(names, r.randrange(len(names) + 1)),
            "additionalProperties": r.choice([False, False, {"type": "integer"}]),
            **r.choice([{}, {}, {"maxProperties": len(names)}, {"minProperties": 1}])}


def exact(text):
    """Parsed with the digits that stand there, so that what is just beyond a bound is not rounded to it."""
    return json.loads(text, parse_float=decimal.Decimal)


def test_random_schemas(probe):
    r, ended = support.seed(), 0
    for i in range(N_SCHEMAS):
        schema = random_schema(r)
        answer = probe.ask("json_schema", schema, seed=r.randrange(1 << 30), n=3, most=40)
        assert "texts" in answer or "contradicts itself" in answer["error"], (schema, answer)
        for text in filter(None, answer.get("texts", [])):
            jsonschema.validate(exact(text), exact(json.dumps(schema)), format_checker=jsonschema.FormatChecker())
            ended += 1
    assert ended > N_SCHEMAS


def test_instances_of_random_schemas_are_taken(probe):
    """What one walk has written in its own spelling is taken again in Python's."""
    r = support.seed()
    for i in range(50):
        schema = random_schema(r)
        texts = [t for t in probe.ask("json_schema", schema, seed=i, n=3, most=30).get("texts", []) if t]
        again = [json.dumps(json.loads(t), ensure_ascii=False) for t in texts]
        plain = [t for t in again if not re.search(r"\d[.eE]|Infinity", t)]  # floats are rounded
        assert all(probe.ask("json_schema", schema, texts=plain)["fits"]), (schema, plain)


# ---- expressions ----

def random_regex(r, depth=0):
    kind = r.randrange(9 if depth < 3 else 4)
    if kind < 4:
        return r.choice(["a", "b", "é", "[a-c]", "[^a]", "\\d", "\\w", ".", "\\.", "[\\s\\-x]", "\\x41", "\\W"])
    if kind == 4:
        return "(" + random_regex(r, depth + 1) + "|" + random_regex(r, depth + 1) + ")"
    if kind == 5:
        return "(?:" + random_regex(r, depth + 1) + ")" + r.choice(["*", "+", "?", "{2}", "{1,3}", "{0,2}?", "{2,}"])
    return random_regex(r, depth + 1) + random_regex(r, depth + 1)


class Pcre2:
    """An expression that must take a whole text; of the library that the tokenizer splits texts with."""
    ANCHORED, ENDANCHORED, UTF = 0x80000000, 0x20000000, 0x00080000

    def __init__(self, source):
        self.library = ctypes.CDLL(ctypes.util.find_library("pcre2-8"))
        for name, kind, n in (("compile", ctypes.c_void_p, 6), ("match_data_create_from_pattern", ctypes.c_void_p, 2),
                              ("match", ctypes.c_int, 7), ("match_data_free", None, 1), ("code_free", None, 1)):
            function = getattr(self.library, f"pcre2_{name}_8")
            function.restype = kind
            setattr(self, name, function)
        error, at, pattern = ctypes.c_int(), ctypes.c_size_t(), source.encode()
        self.code = self.compile(pattern, ctypes.c_size_t(len(pattern)), self.ANCHORED | self.ENDANCHORED | self.UTF,
                                 ctypes.byref(error), ctypes.byref(at), None)
        assert self.code, (source, error.value)
        self.code = ctypes.c_void_p(self.code)
        self.data = ctypes.c_void_p(self.match_data_create_from_pattern(self.code, None))

    def fullmatch(self, text):
        subject = text.encode()
        found = self.match(self.code, subject, ctypes.c_size_t(len(subject)), ctypes.c_size_t(0), 0, self.data, None)
        assert found >= -1, found  # -1: no match; below: a failure
        return found > 0

    def close(self):
        self.match_data_free(self.data)
        self.code_free(self.code)


def test_expressions(probe):
    r = support.seed()
    for i in range(2 * N_SCHEMAS):
        source = random_regex(r)
        compiled = re.compile(source, re.ASCII)
        answer = probe.ask("regex", source, seed=i, n=3, most=8)
        texts = [t for t in answer.get("texts", []) if t is not None]
        assert "texts" in answer, (source, answer)
        for text in texts:
            assert compiled.fullmatch(text), (source, text)
        tries = ["".join(r.choice("abcé.x1 -A\n") for _ in range(r.randrange(7))) for _ in range(30)] + texts
        fits = probe.ask("regex", source, texts=tries)["fits"]
        assert fits == [bool(compiled.fullmatch(t)) for t in tries], source
        pcre2 = Pcre2(source)
        assert fits == [pcre2.fullmatch(t) for t in tries], source
        pcre2.close()


def test_pattern_is_searched_in_the_text_itself(probe):
    r = support.seed()
    for _ in range(150):
        source = r.choice(["", "^"]) + random_regex(r) + r.choice(["", "$"])
        compiled = re.compile(source.replace("$", r"\Z"), re.ASCII)
        tries = ["".join(r.choice("abcé\"\\x1\n") for _ in range(r.randrange(6))) for _ in range(30)]
        answer = probe.ask("json_schema", {"type": "string", "pattern": source},
                           texts=[json.dumps(t, ensure_ascii=False) for t in tries])
        if r"\W|" not in source and "|" not in source:  # an anchor belongs to an alternative
            assert answer["fits"] == [bool(compiled.search(t)) for t in tries], source


# ---- grammars ----

ARITHMETIC = r"""
# a line for each equation
root ::= (sum "=" sum "\n")+
sum  ::= part ([-+] part)*
part ::= [0-9]+ | "(" sum ")" |
         "π"
"""


def test_grammars(probe):
    """What is written is an equation; what is none is not taken."""
    r, texts = support.seed(), []
    for _ in range(40):  # four of five walks are not at an end after 15 steps
        answer = probe.ask("ebnf", ARITHMETIC, seed=r.randrange(1 << 30), n=20, most=15)
        texts += [t for t in answer["texts"] if t]
        if len(texts) > 3:
            break
    assert len(texts) > 3
    for line in "".join(texts).splitlines():
        left, right = re.sub(r"(?<!\d)0+(?=\d)", "", line.replace("π", "3")).split("=")
        assert isinstance(eval(left), int) and isinstance(eval(right), int), line
    tries = {"1=1\n": True, "(1-(22+π))=0\n1=2\n": True, "1=1": False, "1+=1\n": False, "(1=1\n": False, "": False}
    assert probe.ask("ebnf", ARITHMETIC, texts=list(tries))["fits"] == list(tries.values())


@pytest.mark.parametrize("source, words", [
    ('root ::= root "a" | "b"', "left recursion"), ('x ::= "a"', "no rule named root"),
    ("root ::= y", "no rule named y"), ('root ::= "a', "line 1"), ('root ::= "a"\nroot ::= "b"', "twice"),
    ('root ::= ("a"', "no end"), ('root ::= "a" )', "without"), ("root ::= [z-a]", "not in order"),
    ('root ::= "a"{3,2}', "in order"), ('root = "a"', "::="), ('root ::= "\\q"', "escape"), ("root ::= +", "missing")])
def test_grammars_that_are_none(probe, source, words):
    assert words in probe.ask("ebnf", source, texts=[])["error"]


# ---- hostile forms ----

DEEP = {"$defs": {f"d{i}": {"anyOf": [{"$ref": f"#/$defs/d{i + 1}"}] * 2} for i in range(60)}}
DEEP["$defs"]["d60"] = {"type": "null"}


@pytest.mark.parametrize("kind, source", [
    ("regex", "(" * 1000 + "a" + ")" * 1000), ("regex", "(((a{1000}){1000}){1000}){1000}"),
    ("regex", "(a|a|a|a)*" * 50 + "b"), ("regex", "(a?){0,1000000}" * 20), ("regex", "([ab]*a[ab]{2000})*c"),
    ("regex", "|".join(f"a{i}" for i in range(20000))), ("regex", "(.*){5,100000}x(.*){7,100000}"),
    ("json_schema", {**DEEP, "$ref": "#/$defs/d0"}),
    ("json_schema", {"allOf": [{"$ref": "#"}]}), ("json_schema", {"anyOf": [{"$ref": "#"}, {"type": "null"}]}),
    ("json_schema", '{"items":' * 200 + "{}" + "}" * 200),
    ("json_schema", {"type": "array", "maxItems": 10**9, "items": {"type": "string", "maxLength": 10**9}}),
    ("json_schema", {"enum": [f"value {i}" for i in range(20000)]}),
    ("json_schema", {"type": "object", "properties": {f"p{i}": {} for i in range(3000)}}),
    ("ebnf", 'root ::= ("a" root | "a" "a" root | "b" root root)*'), ("ebnf", "root ::= " + "(" * 5000),
    ("ebnf", 'root ::= r0\n' + "".join(f'r{i} ::= r{i + 1} r{i + 1}\n' for i in range(3000)) + 'r3000 ::= "a"'),
    ("choice", json.dumps(["a" * i for i in range(2000)])),
])
def test_hostile_forms_end(probe, kind, source):
    """An answer, or an error with words; never more than memory and steps allow."""
    answer = probe.ask(kind, source, seed=1, n=1, most=20)
    assert "texts" in answer or answer["error"]
