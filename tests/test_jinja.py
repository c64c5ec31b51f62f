"""test_jinja.py - mpk_chat_prompt against the Jinja2 that Transformers runs.

Every template of llama.cpp's collection with many conversations, hand-written snippets, and random templates: the texts
must be equal, or both sides must refuse. Where mpk refuses what Jinja2 renders, it must say that it does not know
something (MPK_EUNSUPPORTED), and the collection has no such template.

    MPK_LIBRARY        the built libmpk.so (default: build/libmpk.so)
    MPK_LLAMA_SDIST    llama_cpp_python-0.3.36.tar.gz (default: .cache/llama_cpp_python-0.3.36.tar.gz)
    MPK_SEED           repeats a run; the seed is printed
    MPK_JINJA_RANDOM   how many random templates
"""

import ctypes
import functools
import json
import os
import random
import re
import tarfile
import time
import warnings
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SEED = int(os.environ.get("MPK_SEED", time.time_ns() % 10**9))
N_RANDOM = int(os.environ.get("MPK_JINJA_RANDOM", 1000))
OK, EUNSUPPORTED = 0, 5


class ChatOptions(ctypes.Structure):
    _fields_ = [
        ("size", ctypes.c_size_t),
        ("chat_template", ctypes.c_char_p),
        ("tools", ctypes.c_char_p),
        ("variables", ctypes.c_char_p),
        ("no_answer", ctypes.c_bool),
        ("reserved", ctypes.c_char * 7),
    ]


def as_bytes(value):
    return None if value is None else json.dumps(value, ensure_ascii=False).encode()


class Mpk:
    def __init__(self):
        library = Path(os.environ.get("MPK_LIBRARY", ROOT / "build" / "libmpk.so")).resolve()
        assert library.exists(), f"{library} is missing: build first, or set MPK_LIBRARY"
        self.lib = ctypes.CDLL(library)
        self.lib.mpk_context_create.restype = ctypes.c_void_p
        self.lib.mpk_error_message.restype = ctypes.c_char_p
        self.cx = ctypes.c_void_p(self.lib.mpk_context_create())

    def render(self, template, messages, tools=None, variables=None, answer=True, tokenizer=None):
        """(status, text or message)"""
        source, out, n = as_bytes(messages), ctypes.c_void_p(), ctypes.c_size_t()
        options = ChatOptions(
            ctypes.sizeof(ChatOptions),
            None if template is None else template.encode(),
            as_bytes(tools),
            as_bytes(variables),
            not answer,
        )
        status = self.lib.mpk_chat_prompt(
            self.cx,
            tokenizer,
            source,
            ctypes.c_size_t(len(source)),
            ctypes.byref(options),
            ctypes.byref(out),
            ctypes.byref(n),
        )
        if status != OK:
            return status, self.lib.mpk_error_message(self.cx).decode(errors="replace")
        text = ctypes.string_at(out, n.value).decode()
        self.lib.mpk_free(out)
        return OK, text


@pytest.fixture(scope="module")
def mpk():
    print(f"seed: MPK_SEED={SEED}")
    return Mpk()


@pytest.fixture(scope="module")
def hf():
    """apply_chat_template of a tokenizer without special tokens: the text, or an exception."""
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.WordLevel({"a": 0}, unk_token="a")))
    tokenizer._special_tokens_map = dict.fromkeys(tokenizer.SPECIAL_TOKENS_ATTRIBUTES)
    warnings.simplefilter("ignore")

    def render(template, messages, tools=None, variables=None, answer=True):
        try:
            return True, tokenizer.apply_chat_template(
                json.loads(json.dumps(messages)),
                tools=tools,
                chat_template=template,
                tokenize=False,
                add_generation_prompt=answer,
                **(variables or {}),
            )
        except Exception as e:  # of whatever kind: a template can raise them all
            return False, f"{type(e).__name__}: {e}"

    return render


def compare(mpk, hf, template, messages, tools=None, variables=None, answer=True):
    """Does Transformers render it, and None if both give the same text or refuse, else how they differ; *: unknown."""
    good, expected = hf(template, messages, tools, variables, answer)
    if good and re.search(
        r"<(?!Macro|Namespace|LoopContext)[a-z_-]+ (?:object |method |function )?[^<>]*at 0x", expected
    ):
        return good, None  # an address of Python's
    status, found = mpk.render(template, messages, tools, variables, answer)
    if good != (status == OK):
        mark = "*" if status == EUNSUPPORTED else ""
        return good, f"{mark}Transformers: {expected!r}\nmpk: {status} {found!r}"
    return good, f"Transformers: {expected!r}\nmpk: {found!r}" if good and expected != found else None


# --- conversations ---

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": 'The weather in a city, "now" & <soon>.',
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string", "description": "Name of the city", "enum": ["Köln", "Paris"]},
                "days": {"type": "integer", "description": "how many", "default": 3, "minimum": 0.5},
                "units": {"type": ["string", "null"]},
                "tags": {"type": "array", "items": {"type": "string"}},
                "where": {"type": "object", "properties": {"x": {"type": "number"}}, "required": ["x"]},
                "any": {"anyOf": [{"type": "string"}, {"type": "integer"}], "nullable": True},
            },
            "required": ["city"],
        },
    },
}
CLOCK = {
    "type": "function",
    "function": {"name": "clock", "description": "The time", "parameters": {"type": "object", "properties": {}}},
}
RETURNS = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Adds",
        "parameters": {"type": "object", "properties": {"a": {"type": "number"}, "b": {"type": "number"}}},
        "return": {"type": "number", "description": "the sum"},
    },
}


def call(arguments, name="get_weather", id="call00001"):
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}


def text_part(text):
    return {"type": "text", "text": text}


USER = {"role": "user", "content": "Hello, who are you?"}
SYSTEM = {"role": "system", "content": "You are a helpful assistant."}
ASSISTANT = {"role": "assistant", "content": "I am a model."}
ARGUMENTS = {"city": "Köln", "days": 2, "tags": ["a", "b"], "where": {"x": 1.5}, "deep": {"a": {"b": [1, None, True]}}}
TOOL_TURNS = [
    {"role": "user", "content": "Weather in Köln?"},
    {"role": "assistant", "content": "", "tool_calls": [call(ARGUMENTS)]},
    {"role": "tool", "tool_call_id": "call00001", "name": "get_weather", "content": '{"celsius": 21.5}'},
]
CONVERSATIONS = {
    "user": [USER],
    "system": [SYSTEM, USER],
    "turns": [SYSTEM, USER, ASSISTANT, {"role": "user", "content": "And now?"}],
    "no system": [USER, ASSISTANT, {"role": "user", "content": "And now?"}, ASSISTANT],
    "ends with assistant": [SYSTEM, USER, ASSISTANT],
    "empty": [{"role": "system", "content": ""}, {"role": "user", "content": ""}, {"role": "assistant", "content": ""}],
    "spaces": [{"role": "user", "content": "  \n padded\t\n\n"}, {"role": "assistant", "content": "\n x \n"}, USER],
    "unicode": [
        {"role": "system", "content": "Größe 你好 🙂 ﬁ ß"},
        {"role": "user", "content": "Ünïcode\u2028\u00a0 \x85 İstanbul"},
    ],
    "markup": [{"role": "user", "content": "<b>&amp;</b> {{ x }} {% if %} <|im_end|> \\ ' \" </think>"}],
    "parts": [
        {"role": "system", "content": [text_part("Be brief.")]},
        {"role": "user", "content": [text_part("one "), text_part("two")]},
        {"role": "assistant", "content": [text_part("three")]},
        {"role": "user", "content": [text_part("four")]},
    ],
    "images": [
        {
            "role": "user",
            "content": [
                {"type": "image"},
                text_part("What is this?"),
                {"type": "image_url", "image_url": {"url": "x"}},
            ],
        }
    ],
    "null content": [
        USER,
        {"role": "assistant", "content": None, "tool_calls": [call({"city": "Paris"})]},
        TOOL_TURNS[2],
    ],
    "no content": [USER, {"role": "assistant", "tool_calls": [call({"city": "Paris"})]}, TOOL_TURNS[2]],
    "tool turns": TOOL_TURNS,
    "tool turns, answered": [SYSTEM, *TOOL_TURNS, {"role": "assistant", "content": "21.5 degrees."}, USER],
    "arguments as text": [
        USER,
        {"role": "assistant", "content": "", "tool_calls": [call('{"city": "Paris", "days": 2}')]},
        TOOL_TURNS[2],
        USER,
    ],
    "two calls": [
        SYSTEM,
        USER,
        {"role": "assistant", "content": "Both:", "tool_calls": [call(ARGUMENTS), call({}, "clock", "call00002")]},
        TOOL_TURNS[2],
        {"role": "tool", "tool_call_id": "call00002", "name": "clock", "content": "12:00"},
    ],
    "tool result as parts": [
        *TOOL_TURNS[:2],
        {
            "role": "tool",
            "tool_call_id": "call00001",
            "name": "get_weather",
            "content": [text_part("21"), text_part("C")],
        },
    ],
    "tool result as object": [
        *TOOL_TURNS[:2],
        {"role": "tool", "tool_call_id": "call00001", "name": "get_weather", "content": {"celsius": 21.5, "sky": None}},
    ],
    "plain calls": [
        USER,
        {"role": "assistant", "content": "", "tool_calls": [{"name": "get_weather", "arguments": {"city": "Paris"}}]},
        TOOL_TURNS[2],
    ],
    "thoughts in text": [
        USER,
        {"role": "assistant", "content": "<think>\nhm\n</think>\n\nI am."},
        {"role": "user", "content": "More"},
    ],
    "reasoning": [
        USER,
        {"role": "assistant", "content": "I am.", "reasoning_content": "Let me see.\n"},
        {"role": "user", "content": "More"},
    ],
    "reasoning at the end": [USER, {"role": "assistant", "content": "I am.", "reasoning": "Let me see."}],
    "reasoning and calls": [
        USER,
        {"role": "assistant", "content": "", "thinking": "I call.", "tool_calls": [call({"city": "Paris"})]},
        TOOL_TURNS[2],
    ],
    "two users": [USER, USER],
    "two systems": [SYSTEM, SYSTEM, USER],
    "late system": [USER, SYSTEM],
    "developer": [{"role": "developer", "content": "Obey."}, USER],
    "unknown role": [{"role": "critic", "content": "Bad."}],
    "no role": [{"content": "Hm"}],
    "names": [
        {"role": "user", "name": "Ann", "content": "I am Ann"},
        {"role": "assistant", "name": "Bob", "content": "I am Bob"},
    ],
    "ipython": [
        USER,
        {"role": "ipython", "content": {"output": [1, 2.0, "x"]}},
        {"role": "function", "name": "f", "content": "3"},
    ],
    "a long one": [
        {"role": "user" if i % 2 == 0 else "assistant", "content": f"turn {i}\n" * (i % 4)} for i in range(24)
    ],
}
SPECIALS = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}
SETTINGS = {
    "plain": {},
    "tools": {"tools": [WEATHER, CLOCK]},
    "a tool with a result": {"tools": [RETURNS]},
    "no answer": {"answer": False},
    "thinks": {"variables": {"enable_thinking": True, "thinking": True, "reasoning_effort": "high"}},
    "does not think": {"variables": {"enable_thinking": False, "thinking": False}, "tools": [CLOCK]},
    "documents": {"variables": {"documents": [{"title": "T", "text": "Text"}], "date_string": "26 Jul 2024"}},
}


@functools.cache  # the archive has 77 MB
def templates():
    sdist = Path(os.environ.get("MPK_LLAMA_SDIST", ROOT / ".cache" / "llama_cpp_python-0.3.36.tar.gz"))
    if not sdist.exists():
        pytest.skip(f"{sdist} is missing: ./dev setup fetches it")
    found = {}
    with tarfile.open(sdist) as archive:
        for member in archive:
            if member.isfile() and "/models/templates/" in member.name and member.name.endswith(".jinja"):
                found[Path(member.name).stem] = archive.extractfile(member).read().decode()
    assert len(found) >= 60
    return found


def test_templates_of_llama_cpp(mpk, hf, tmp_path):
    """Report: how many agree, and which do not.  The seed draws half of them; a thorough run takes all."""
    r, equal, refused = random.Random(SEED), 0, 0
    different, rendered = [], set()
    for name, template in sorted(templates().items()):
        for title, messages in CONVERSATIONS.items():
            for setting, options in SETTINGS.items():
                if r.random() < 0.5 and not os.environ.get("MPK_THOROUGH"):
                    continue
                options = dict(options, variables={**SPECIALS, **options.get("variables", {})})
                renders, found = compare(mpk, hf, template, messages, **options)
                if found:
                    different.append(f"{name}, {title}, {setting}:\n{found}")
                elif renders:
                    equal += 1
                    rendered.add(name)
                else:
                    refused += 1
    print(f"{len(rendered)} templates: {equal} equal texts, {refused} refused by both, {len(different)} different")
    print("never rendered:", sorted(set(templates()) - rendered))
    assert not different, "\n\n".join(different[:20])
    assert equal > 5 * refused / 2


# --- snippets ---

VALUES = {
    "s": "Hello, World",
    "u": "Größe ßtraße 你好🙂",
    "e": "",
    "ws": "  a b \n",
    "n": 7,
    "z": 0,
    "f": 2.5,
    "big": 1e22,
    "t": True,
    "none_": None,
    "l": [3, 1, 2],
    "ls": ["b", "A", "c", "a"],
    "mixed": [1, "a", None, 2.5, [1], {"k": "v"}],
    "d": {"b": 1, "a": "x", "items": [1, 2], "C": None},
    "users": [
        {"name": "Ann", "age": 30, "tags": ["x"]},
        {"name": "bob", "age": 25},
        {"name": "Cid", "age": 30, "address": {"city": "Rome"}},
    ],
}
SNIPPETS = (ROOT / "tests" / "jinja_snippets.txt").read_text(encoding="utf-8").split("\n====\n")


def test_snippets(mpk, hf):
    different = []
    assert len(SNIPPETS) > 300
    for snippet in SNIPPETS:
        _, found = compare(mpk, hf, snippet, [USER], variables=VALUES)
        if found:
            different.append(f"{snippet}\n{found}")
    assert not different, f"{len(different)} of {len(SNIPPETS)}:\n" + "\n\n".join(different)


def test_errors_say_where(mpk):
    for template, words in {
        "a\n{% if x %}": "line 2",
        "{{ a b }}": "line 1, column 6",
        "\n\n{{ missing.x }}": "line 3: 'missing' is undefined",
        "{{ raise_exception('No, ' ~ messages[0].role) }}": "No, user",
        "{{ x|frobnicate }}": "there is no filter frobnicate",
        "\n{% include 'a' %}": "line 2, column 4: the statement include",
        "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}": "does not come to an end",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}": "levels deep",
        "{{ 'x' * 99999999 }}": "bytes",
    }.items():
        status, found = mpk.render(template, [USER])
        assert status != OK and words in found, (template, status, found)


def test_faulty_arguments(mpk):
    for messages, words in {"[]": "no messages", "{}": "JSON list", "[1]": "item 0", "[": "line 1"}.items():
        out, n = ctypes.c_void_p(), ctypes.c_size_t()
        options = ChatOptions(ctypes.sizeof(ChatOptions), b"x")
        status = mpk.lib.mpk_chat_prompt(
            mpk.cx,
            None,
            messages.encode(),
            ctypes.c_size_t(len(messages)),
            ctypes.byref(options),
            ctypes.byref(out),
            ctypes.byref(n),
        )
        assert status != OK and words in mpk.lib.mpk_error_message(mpk.cx).decode()
    status, found = mpk.render(None, [USER])
    assert status == EUNSUPPORTED and "no chat template" in found


# --- a folder as Transformers saves it ---


@pytest.mark.parametrize("layout", ["file", "list", "config"])
def test_folder(mpk, tmp_path, layout):
    """Templates and special tokens come from where Transformers looks for them."""
    from tokenizers import AddedToken, Tokenizer, models
    from transformers import AutoTokenizer, PreTrainedTokenizerFast

    core = Tokenizer(models.BPE({"a": 0, "b": 1}, []))
    core.add_special_tokens([AddedToken("<s>"), AddedToken("</s>"), AddedToken("<pad>")])
    made = PreTrainedTokenizerFast(
        tokenizer_object=core, bos_token=AddedToken("<s>"), eos_token="</s>", pad_token="<pad>"
    )
    template = (
        "{{ bos_token }}{% for m in messages %}{{ m.role }}: "
        "{{ m.content }}{{ eos_token }}{% endfor %}{{ unk_token }}{{ pad_token }}"
    )
    made.chat_template = {"default": template, "tool_use": "T" + template} if layout == "list" else template
    made.save_pretrained(tmp_path, **({} if layout == "file" else {"save_jinja_files": False}))
    assert (tmp_path / "chat_template.jinja").exists() == (layout == "file")
    reference = AutoTokenizer.from_pretrained(tmp_path)
    tokenizer = ctypes.c_void_p()
    status = mpk.lib.mpk_tokenizer_open(mpk.cx, str(tmp_path).encode(), ctypes.byref(tokenizer))
    assert status == OK, mpk.lib.mpk_error_message(mpk.cx)
    for tools in (None, [CLOCK]):
        expected = reference.apply_chat_template([SYSTEM, USER], tools=tools, tokenize=False)
        assert mpk.render(None, [SYSTEM, USER], tools, answer=False, tokenizer=tokenizer) == (OK, expected)
    mpk.lib.mpk_tokenizer_close(tokenizer)


# --- random templates ---


LITERALS = [
    "0",
    "1",
    "-3",
    "7",
    "2.5",
    "1e3",
    "'a'",
    "'Ab c'",
    '"q\'s"',
    "''",
    "'é🙂'",
    "[]",
    "[1, 'b']",
    "(1,)",
    "()",
    "{}",
    "{'k': 1, 2: [3]}",
    "true",
    "false",
    "none",
    "missing",
    "'a\\nb'",
    "10000000000",
    "0.1",
    "'%s-%d'",
]
SMALL_TEXTS = ["s", "u", "ws", "e", "'abc'", "'x y z'", "ls[0]", "'Größe'"]
TEXTS = [
    "($T).strip()",
    "($T).lstrip($T)",
    "($T).rstrip('ab ')",
    "($T).upper()",
    "($T).lower()",
    "($T).title()",
    "($T).capitalize()",
    "($T).replace($T, $T)",
    "($T).replace('a', 'bb', 1)",
    "($T)|trim",
    "($T)|upper",
    "($T)|title",
    "($T)|capitalize",
    "($T)|replace('o', $T)",
    "($T)[$i:]",
    "($T)[:$i]",
    "($T)[::-1]",
    "($T)[$i:$i:<1;2;-1;-2>]",
    "($T) + ($T)",
    "($T) ~ ($E)",
    "($T) * <0;1;2;-1>",
    "($T).split()|join($T)",
    "($Q)|join($T)",
    "($T)|indent(2, <true;false>)",
    "($E)|string",
    "($E)|tojson",
    "($E)|tojson(indent=<0;1;2;4>)",
    "'%s %s' % ($T, $E)",
    "'{}/{!r}'.format($T, $E)",
    "($T).removeprefix($T)",
    "($T).zfill(9)",
    "($T)|escape",
    "($T).removesuffix('d')",
    "($T).center(12, '*')",
    "($T).ljust(8)",
    "($T)[$i]",
    "($T)|reverse",
    "($T).swapcase()",
    "($T)|center(14)",
    "'%5.1f|%03d|%-4s|' % ($N, $N, $T)",
    "'{:>5}|{:^7}|{:.2f}'.format($T, $T, $N)",
]
SMALL_NUMBERS = ["n", "z", "f", "1", "2", "-1", "3", "0", "t", "2.0", "-0.5", "l[0]", "100"]
NUMBERS = [
    "($N) <+;-;*;/;//;%> ($N)",
    "-($N)",
    "($N) ** <0;1;2;-1;0.5>",
    "($Q)|length",
    "($T)|length",
    "($T).find($T)",
    "($Q)|sum",
    "($N)|int",
    "($N)|float",
    "($N)|round(<;1;2>)",
    "($N)|abs",
    "($T)|int",
    "($T).count($T)",
    "($Q)|max",
    "($Q)|min",
    "($N)|round(1, '<ceil;floor>')",
    "($Q).index($e)",
    "'<12;1.5; 7 ;1_000;x;1e2;-4;0x1f>'|<int;float;int(5)>",
]
SMALL_SEQUENCES = [
    "l",
    "ls",
    "mixed",
    "users",
    "d",
    "s",
    "range(4)",
    "[1, 2, 3]",
    "d.items()",
    "d.keys()",
    "('a', 'b')",
    "missing",
    "range(5, 0, -2)",
]
SEQUENCES = [
    "($Q)|list",
    "($Q)|sort|list",
    "($Q)|sort(reverse=true)",
    "($Q)|reverse|list",
    "($Q)|unique|list",
    "($v)[$i:]",
    "($v)[::-1]",
    "($v)[:-1]",
    "users|map(attribute='<name;age;address.city;tags;tags.0>'<;, default=1>)|list",
    "($Q)|map('<upper;string;int;length;first;tojson>')|list",
    "($Q)|reject('<string;number;equalto>', $e)|list",
    "($Q)|select('<string;number;defined;odd;none;mapping>')|list",
    "($Q)|reject|list",
    "users|selectattr('<age;name;tags;address>'<;, 'defined';, 'equalto', 30;, 'in', [25]>)|list",
    "users|rejectattr('tags')|list",
    "d|dictsort",
    "d|dictsort(by='<key;value>', reverse=true)",
    "($Q)|batch(2, $e)|list",
    "($Q)|slice(2)|list",
    "users|groupby('age')",
    "($T).split(<;' ';'o', 1;none, 1>)",
    "($T).rsplit(' ', 1)",
    "($T).splitlines()",
    "($Q) + ($Q)",
    "[$E, $E]",
    "($E, $e)",
    "($T).partition(' ')",
    "($Q) * 2",
    "($T)|list",
    "users|sort(attribute='<age;name;age,name>')",
    "{<'k';1;none;2.5;true;(1, 2)>: $E, 'z': $e}",
    "d.values()|list",
    "dict(a=$E, **d)",
    "($Q)|items|list",
]
SMALL_TRUTHS = ["t", "true", "missing", "s", "e", "n"]
TRUTHS = [
    "($E) <==;!=> ($E)",
    "($N) \u2039 ($N) \u2039= ($N)",
    "($E) <in;not in> ($Q)",
    "not ($B)",
    "($E) <and;or> ($E)",
    "($Q) \u2039 ($Q)",
    "($E) is <;not ><defined;string;number;mapping;iterable;sequence;none;true;boolean>",
    "($E) is <;not ><integer;float;undefined;callable;odd;even;lower;upper>",
    "($N) is divisibleby <1;2;3;0>",
    "($T).<isdigit;isalpha;isspace;isupper;islower;istitle;isalnum>()",
    "($T).startswith($T)",
    "($T).endswith(('d', $T))",
    "($T) \u203a= ($T)",
    "($E) is <eq;ne;gt;in> ($E)",
]
SMALL_EXPRESSIONS = ["$v"] * 10
EXPRESSIONS = [
    "$e",
    "$v",
    "$T",
    "$T",
    "$N",
    "$Q",
    "($B)",
    "($E if $B else $E)",
    "($E if $B)",
    "$v.<name;a;items;x;upper;append;get>",
    "($v)[$e]",
    "($Q)|<first;last;length;list;string>",
    "($E)|default($e<;, true>)",
    "d.get($e, $e)",
]


class Writer:
    """Random templates: expressions of some kind where that kind is wanted, and sometimes of any."""

    def __init__(self, r):
        self.r = r
        self.names = list(VALUES)
        self.loops = 0

    def pick(self, *of):
        return self.r.choice(of)

    def literal(self):
        return self.pick(*LITERALS)

    def grow(self, rules, depth):
        """One of the rules, with what its marks stand for: $T text, $N number, $Q sequence, $B truth, $E anything, $e
        anything small, $v a name, <a;b> one of these."""
        kinds = {
            "T": lambda: self.text(depth - 1),
            "N": lambda: self.number(depth - 1),
            "Q": lambda: self.sequence(depth - 1),
            "B": lambda: self.truth(depth - 1),
            "E": lambda: self.expression(depth - 1),
            "e": lambda: self.expression(0),
            "v": lambda: self.pick(*self.names),
            "i": lambda: self.pick("0", "1", "2", "-1", "-2", "n", "t", "9"),
        }
        rule = re.sub(r"<([^<>]*;[^<>]*)>", lambda m: self.pick(*m[1].split(";")), self.pick(*rules))
        return re.sub(r"\$([TNQBEevi])", lambda m: kinds[m[1]](), rule).replace("\u2039", "<").replace("\u203a", ">")

    def text(self, depth):
        return self.grow(TEXTS if depth > 0 and self.r.random() > 0.2 else SMALL_TEXTS, depth)

    def number(self, depth):
        return self.grow(NUMBERS if depth > 0 and self.r.random() > 0.3 else SMALL_NUMBERS, depth)

    def sequence(self, depth):
        return self.grow(SEQUENCES if depth > 0 and self.r.random() > 0.2 else SMALL_SEQUENCES, depth)

    def truth(self, depth):
        return self.grow(TRUTHS if depth > 0 else SMALL_TRUTHS, depth)

    def expression(self, depth):
        return self.grow(EXPRESSIONS if depth > 0 else SMALL_EXPRESSIONS + LITERALS, depth)

    def space(self):
        return self.pick("", " ", "\n", "  \n\t", "x", " y ", "\n\n  ", "text\n")

    def tag(self, body):
        return "{%" + self.pick("", "-", "+", "") + " " + body + " " + self.pick("", "-", "+", "") + "%}"

    def body(self, depth):
        return "".join(self.space() + self.statement(depth) for _ in range(self.r.randrange(1, 4))) + self.space()

    def name(self):
        name = self.pick("v0", "v1", "v2", "s", "n", "l")
        if name not in self.names:
            self.names.append(name)
        return name

    def loop(self, depth):
        over = self.sequence(2)
        condition = f" if {self.truth(1)}" if self.r.random() < 0.2 else ""
        start = self.tag(f"for {self.pick(self.name(), 'k, v')} in {over}{condition}")
        self.loops += 1
        self.names += ["k", "v"]
        body = self.body(depth - 1)
        self.loops -= 1
        other = self.tag("else") + self.body(depth - 1) if self.r.random() < 0.2 else ""
        return start + body + other + self.tag("endfor")

    def statement(self, depth):
        kind = self.r.random()
        if depth <= 0 or kind < 0.35:
            e = self.expression(self.r.randrange(1, 4))
            if self.loops and self.r.random() < 0.3:
                e = "loop." + self.pick(
                    "index",
                    "index0",
                    "first",
                    "last",
                    "length",
                    "revindex",
                    "revindex0",
                    "previtem",
                    "nextitem",
                    "depth",
                    "cycle('a', 'b')",
                    "changed(k)",
                )
            return self.pick("{{ ", "{{- ") + e + self.pick(" }}", " -}}")
        if kind < 0.5:
            return self.tag(f"set {self.name()} = {self.expression(2)}")
        if kind < 0.62:
            middle = self.tag(f"elif {self.truth(1)}") + self.body(depth - 1) if self.r.random() < 0.4 else ""
            middle += self.tag("else") + self.body(depth - 1) if self.r.random() < 0.5 else ""
            return self.tag(f"if {self.truth(2)}") + self.body(depth - 1) + middle + self.tag("endif")
        if kind < 0.75:
            return self.loop(depth)
        if kind < 0.8 and self.loops:
            return self.tag(f"if {self.truth(1)}") + self.tag(self.pick("break", "continue")) + self.tag("endif")
        return self.block(depth)

    def block(self, depth):
        name, inside = self.name(), self.loops
        self.loops = 0
        kind = self.r.randrange(8)
        if kind == 0:
            made = (
                self.tag(f"set {name}{self.pick('', ' | upper', ' | trim | length')}")
                + self.body(depth - 1)
                + self.tag("endset")
            )
        elif kind == 1:
            made = (
                self.tag(f"with {name} = {self.expression(1)}, w = {self.expression(1)}")
                + self.body(depth - 1)
                + self.tag("endwith")
            )
        elif kind == 2:
            made = (
                self.tag("filter " + self.pick("upper", "trim", "indent(2)", "replace('a', 'b')|title"))
                + self.body(depth - 1)
                + self.tag("endfilter")
            )
        elif kind == 3:
            self.names += ["p", "q"]
            made = (
                self.tag(f"macro m(p, q={self.expression(1)})")
                + self.body(depth - 1)
                + "{{ varargs }}{{ kwargs }}" * self.r.randrange(2)
                + self.tag("endmacro")
            )
            made += "{{ m(" + self.pick("", "1", "s, n", "q=2", "1, 2, 3", "1, x=2", "*l", "**d") + ") }}"
        elif kind == 4:
            made = (
                self.tag("macro c()")
                + "<{{ caller("
                + self.pick("", "1")
                + ") }}>"
                + self.tag("endmacro")
                + self.tag(f"call{self.pick('', '(a=2)')} c()")
                + self.body(depth - 1)
                + self.tag("endcall")
            )
        elif kind == 5:
            made = (
                "{% set ns = namespace(x="
                + self.expression(1)
                + ") %}"
                + "{% for i in l %}{% set ns.x = "
                + self.pick("ns.x ~ i", "i", "[ns.x, i]")
                + " %}{% endfor %}{{ ns.x }}{{ ns.y }}"
            )
        elif kind == 6:
            made = self.tag("generation") + self.body(depth - 1) + self.tag("endgeneration")
        else:
            made = self.pick(
                "{#- c -#}",
                "{# c #}\n",
                "{% raw %} {{ x }} \n{% endraw %}",
                " {%- raw -%} {% if %} {%- endraw +%}\n",
                "{#+ c +#}\n",
            )
        self.loops = inside
        return made


def test_random(mpk, hf):
    """What mpk does not know is allowed, if it is rare."""
    r = random.Random(SEED)
    unknown, equal = [], 0
    for i in range(N_RANDOM):
        writer = Writer(r)
        template = "{{ " + writer.expression(3) + " }}" if i % 3 else writer.body(3)
        _, found = compare(mpk, hf, template, [USER], variables=VALUES)
        if found and found.startswith("*"):
            unknown.append(found)
            continue
        assert not found, f"MPK_SEED={SEED}, template {i}:\n{template}\n{found}"
        equal += hf(template, [USER], variables=VALUES)[0]
    print(f"{N_RANDOM} random templates: {equal} equal texts, {len(unknown)} that mpk does not know")
    assert len(unknown) < N_RANDOM / 20, "\n".join(unknown[:50])
    assert equal > N_RANDOM / 5
