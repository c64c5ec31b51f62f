"""test_tokenizer.py - `mpk tokenize` against the Python package tokenizers, and against the real vocabularies of
llama.cpp.

Many small tokenizers of every kind are trained here and saved as tokenizer.json; ids and texts of random, hostile
strings must be the same from both. The GGUF vocabularies with their vectors (.inp, .out) come from the sdist of
llama-cpp-python.

MPK_BUILD the folder of the built mpk (default: build) MPK_LLAMA_SDIST llama_cpp_python-0.3.36.tar.gz (default:
.cache/llama_cpp_python-0.3.36.tar.gz) MPK_SEED repeats a run; the seed is printed
"""

import ctypes
import json
import os
import random
import subprocess
import tarfile
import time
from pathlib import Path

import pytest
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

ROOT = Path(__file__).resolve().parent.parent
SEED = int(os.environ.get("MPK_SEED", time.time_ns() % 10**9))
STRINGS = int(os.environ.get("MPK_STRINGS", 60))  # for each tokenizer

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
O200K = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
CL100K = (
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+"
    r"|\s++$|\s*[\r\n]|\s+(?!\S)|\s"
)
DEEPSEEK3 = (
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
BOUNDARY = r"\d{1,3}(?=(?:\d{3})*\b)"
HAN = r"\p{Han}+|[\p{Hiragana}\p{Katakana}]+"

CORPUS = [
    "The quick brown fox jumps over the lazy dog. It's 12,345.67 dollars, isn't it? We'll see; they've gone, I'm sure.",
    "def f(x):\n    if x == 0:\n        return [1, 2, 3]\n\treturn {'a': x ** 2}  # comment\n"
    "\n\nclass A(B):\n    pass\n",
    "Größe, naïve café, Ærøskøbing, El Niño, İstanbul, ŒUVRE; Привет, мир! Γειά σου Κόσμε. שלום עולם. مرحبا بالعالم",
    "你好，世界。今天天气很好。日本語のテキスト、カタカナ。한국어 텍스트입니다. ภาษาไทย हिन्दी भाषा",
    "🙂🙃👩‍👩‍👧‍👦🏳️‍🌈 ™ © ½ ² Ⅷ ﬁ e\u0301 a\u0300\u0323 \u200d\u200b\ufeff ★☆ ——… “quoted” ‘text’",
    '<div class="a">&nbsp;</div> https://example.org/a?b=c&d=%20 0x1F 1e-9 3.14159 user@example.com #tag $x += y;',
    "aaaaaaaaaaaaaaaa bbbbbbbb        x\t\t\ty\r\n\r\nz   \n  ~~~~ ==== ------ !!!!! ?????",
]


# --- the program under test ---


class Mpk:
    """The built library for many strings of one model, and the command, which must say the same, for some."""

    def __init__(self):
        build = Path(os.environ.get("MPK_BUILD", ROOT / "build")).resolve()
        self.program = build / "mpk"
        library = build / "libmpk.so"
        for file in (self.program, library):
            assert file.exists(), f"{file} is missing: build first, or set MPK_BUILD"
        self.lib = ctypes.CDLL(library)
        self.lib.mpk_context_create.restype = ctypes.c_void_p
        self.lib.mpk_error_message.restype = ctypes.c_char_p
        self.cx = ctypes.c_void_p(self.lib.mpk_context_create())
        self.model = self.tokenizer = None

    def check(self, status):
        assert status == 0, self.lib.mpk_error_message(self.cx).decode()

    def open(self, model):
        """The tokenizer of a model; the one before is closed."""
        if self.model != model:
            if self.tokenizer:
                self.lib.mpk_tokenizer_close(self.tokenizer)
            self.tokenizer, self.model = ctypes.c_void_p(), None
            self.check(self.lib.mpk_tokenizer_open(self.cx, str(model).encode(), ctypes.byref(self.tokenizer)))
            self.model = model
        return self.tokenizer

    def encode(self, model, data, special=False):
        t, ids, n = self.open(model), ctypes.POINTER(ctypes.c_int32)(), ctypes.c_size_t()
        self.check(
            self.lib.mpk_tokenize(
                self.cx, t, data, ctypes.c_size_t(len(data)), ctypes.c_bool(special), ctypes.byref(ids), ctypes.byref(n)
            )
        )
        result = ids[: n.value]
        self.lib.mpk_free(ids)
        return result

    def decode(self, model, ids):
        t, out, n = self.open(model), ctypes.c_void_p(), ctypes.c_size_t()
        self.check(
            self.lib.mpk_detokenize(
                self.cx,
                t,
                (ctypes.c_int32 * len(ids))(*ids),
                ctypes.c_size_t(len(ids)),
                ctypes.byref(out),
                ctypes.byref(n),
            )
        )
        result = ctypes.string_at(out, n.value)
        self.lib.mpk_free(out)
        return result

    def command(self, model, *options, input):
        done = subprocess.run([self.program, "tokenize", model, "-", *options], input=input, capture_output=True)
        assert done.returncode == 0, done.stderr.decode()
        return done.stdout

    def check_command(self, model, data, special=False):
        """The command gives the library's ids, and their text."""
        ids = self.encode(model, data, special)
        line = self.command(model, *["--add-special"] * special, input=data)
        assert line == " ".join(map(str, ids)).encode() + b"\n"
        text = self.decode(model, ids)
        assert self.command(model, "--decode", input=line) in (text, text + b"\n")

    def refusal(self, model):
        done = subprocess.run([self.program, "tokenize", model, "-p", "x"], capture_output=True)
        assert done.returncode == 1, (done.returncode, done.stdout)
        return done.stderr.decode()


@pytest.fixture(scope="session")
def mpk():
    print(f"seed: MPK_SEED={SEED}")
    return Mpk()


# --- strings ---


def random_char(r):
    kind = r.randrange(10)
    if kind < 3:
        return chr(r.randrange(0x20, 0x7F))
    if kind < 4:
        return r.choice(" \t\n\r\v\f\x85\u00a0\u2003\u3000\u2028\u200b\u200d\u180e\ufeff\u1680")
    if kind < 5:
        return chr(r.randrange(0, 0x300))
    if kind < 6:
        return chr(r.randrange(0x300, 0x1000))
    if kind < 7:
        return r.choice("🙂👩🏽‍🚀🇩🇪\u0301\u0323\u0327\u093c\u3099\uac00\u1100\u1161\u11a8ſKßŉǰΐﬀﬁİıΣς½²Ⅷ①")
    if kind < 8:
        return chr(r.randrange(0x1000, 0xD800))
    return chr(
        r.choice(
            [
                r.randrange(0xE000, 0x10000),
                r.randrange(0x10000, 0x20000),
                r.randrange(0x20000, 0x33000),
                r.randrange(0x10000, 0x110000),
            ]
        )
    )


def random_string(r, added):
    parts = []
    for _ in range(r.randrange(1, 8)):
        kind = r.randrange(8)
        if kind < 2:
            line = r.choice(CORPUS)
            start = r.randrange(len(line))
            parts.append(line[start : start + r.randrange(1, 60)])
        elif kind < 4:
            parts.append("".join(random_char(r) for _ in range(r.randrange(1, 20))))
        elif kind < 5:
            parts.append(r.choice([" ", "\n", "\t", "a", "'", "1", "é", "▁", "🙂", "\u0301", "!"]) * r.randrange(1, 70))
        elif kind < 6 and added:
            parts.append(r.choice(["", " ", "  ", "x"]) + r.choice(added) + r.choice(["", " ", "\n ", "y"]))
        elif kind < 7:
            parts.append(
                r.choice(["'S", "'LL ", "it's", "we'RE", " ▁x", "▁", "<0x41>", "</s", "12345678", "1 234", "\r\n"])
            )
        else:
            parts.append(r.choice([" ", "  ", "\n", ""]))
    return "".join(parts)


def random_bytes(r, added):
    """A string with broken UTF-8: what Python reads with errors="replace" is what mpk must read."""
    data = bytearray(random_string(r, added).encode())
    for _ in range(r.randrange(1, 6)):
        at = r.randrange(len(data) + 1)
        broken = r.choice(
            [
                b"\xff",
                b"\xc3",
                b"\xe2\x82",
                b"\xf0\x9f\x99",
                b"\xed\xa0\x80",
                b"\xf4\x90\x80\x80",
                b"\xc0\xaf",
                b"\xe0\x80\x80",
                b"\x80",
                b"\xf8\x88\x80\x80\x80",
                bytes([r.randrange(256)]),
            ]
        )
        data[at : at + r.randrange(2)] = broken
    return bytes(data)


# --- tokenizers ---

ADDED = ["<s>", "</s>", "<|im_start|>", "<|im_end|>", "<tool>", "<tool_call>", "[INST]", "Köln", "    "]


def split(pattern, behavior="isolated", invert=False):
    return pre_tokenizers.Split(Regex(pattern), behavior, invert)


def byte_level(**options):
    return pre_tokenizers.ByteLevel(**{"add_prefix_space": False, "use_regex": False, **options})


def train(r, tokenizer, alphabet=(), size=(300, 700), **options):
    trainer = trainers.BpeTrainer(
        vocab_size=r.randrange(*size),
        initial_alphabet=list(alphabet),
        show_progress=False,
        special_tokens=["<unk>", "<s>", "</s>"],
        **options,
    )
    tokenizer.train_from_iterator(CORPUS * 3, trainer)
    return tokenizer


def add_tokens(r, tokenizer):
    """Added tokens with random options; special ones are not normalised, as in every file in use."""
    chosen = r.sample(ADDED, r.randrange(2, len(ADDED)))
    spaces = "    " in chosen  # a token that strips to the right before one of spaces makes the library panic
    for text in chosen:
        special = text[0] in "<[" and r.random() < 0.7
        token = AddedToken(
            text,
            single_word=r.random() < 0.2,
            lstrip=r.random() < 0.3,
            rstrip=not spaces and r.random() < 0.3,
            normalized=not special and text.strip() != "" and r.random() < 0.5,
            special=special,
        )
        (tokenizer.add_special_tokens if special else tokenizer.add_tokens)([token])
    return tokenizer


def template(tokenizer):
    ids = [(t, tokenizer.token_to_id(t)) for t in ("<s>", "</s>")]
    return processors.TemplateProcessing(single="<s> $A </s>", pair="<s> $A </s> $B </s>", special_tokens=ids)


def byte_bpe(pre, normalizer=None, processor=None, **model):
    def make(r):
        t = Tokenizer(models.BPE(**model))
        t.pre_tokenizer = pre
        t.decoder = decoders.ByteLevel()
        if normalizer:
            t.normalizer = normalizer
        train(r, t, pre_tokenizers.ByteLevel.alphabet())
        if processor:
            t.post_processor = processor(t)
        return t

    return make


def sentencepiece(
    pre=None,
    normalizer=None,
    decoder=None,
    byte_fallback=True,
    fuse_unk=True,
    bytes_in_vocab=True,
    unk="<unk>",
    **model,
):
    """BPE over characters with a space mark, bytes for what has no token: Llama 2, Mistral, Gemma."""

    def make(r):
        t = Tokenizer(models.BPE(unk_token=unk, fuse_unk=fuse_unk, byte_fallback=byte_fallback, **model))
        t.normalizer = normalizer
        if pre:
            t.pre_tokenizer = pre
        marks = {k: model[k] for k in ("continuing_subword_prefix", "end_of_word_suffix") if k in model}
        trained = train(r, t, limit_alphabet=60, size=(120, 400), **marks)
        if not bytes_in_vocab:
            trained.decoder = decoder
            return trained
        # The byte tokens stand among the others, as in the real files.
        described = json.loads(trained.to_str())
        vocab = described["model"]["vocab"]
        for b in range(256):
            vocab[f"<0x{b:02X}>"] = len(vocab)
        t = Tokenizer.from_str(json.dumps(described))
        t.decoder = decoder
        t.post_processor = template(t)
        return t

    return make


def llama2_decoder():
    return decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )


def llama2_normalizer():
    return normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])


def metaspace(scheme, cut=True):
    return pre_tokenizers.Metaspace(replacement="▁", prepend_scheme=scheme, split=cut)


def byte_sequence(*steps):
    return byte_bpe(pre_tokenizers.Sequence([*steps, byte_level()]))


KINDS = {
    "gpt2": byte_bpe(byte_level(use_regex=True)),
    "gpt2_prefix": byte_bpe(
        byte_level(use_regex=True, add_prefix_space=True), processor=lambda t: processors.ByteLevel()
    ),
    "llama3": byte_bpe(
        pre_tokenizers.Sequence([split(LLAMA3), byte_level()]),
        ignore_merges=True,
        processor=lambda t: processors.Sequence([processors.ByteLevel(), template(t)]),
    ),
    "qwen2": byte_bpe(pre_tokenizers.Sequence([split(QWEN), byte_level()]), normalizer=normalizers.NFC()),
    "o200k": byte_bpe(pre_tokenizers.Sequence([split(O200K), byte_level()])),
    "cl100k": byte_bpe(pre_tokenizers.Sequence([split(CL100K), byte_level()])),
    "deepseek3": byte_sequence(split(r"\p{N}{1,3}"), split(r"[一-龥぀-ゟ゠-ヿ]+"), split(DEEPSEEK3)),
    "falcon": byte_sequence(
        pre_tokenizers.Punctuation("contiguous"), split(GPT2), pre_tokenizers.Digits(False), split("[0-9][0-9][0-9]")
    ),
    "starcoder": byte_sequence(pre_tokenizers.Digits(True), split(GPT2)),
    "boundary": byte_sequence(split(BOUNDARY), split(HAN)),
    "lookahead": byte_sequence(split(r"(?=(\d{3})+(?!\d))"), split(r"[^\S\r\n]+", "merged_with_next")),
    "words": byte_sequence(split(r"\w+", "merged_with_previous"), split(r"\W", "contiguous")),
    "words_invert": byte_sequence(split(r"[\w']+|\s+", "removed", invert=True)),
    "literal": byte_sequence(
        pre_tokenizers.Split(" ", "merged_with_previous"), pre_tokenizers.Split("e", "merged_with_next")
    ),
    "whitespace": byte_sequence(pre_tokenizers.Whitespace()),
    "whitespace_split": byte_sequence(pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Punctuation("isolated")),
    "bert_split": byte_sequence(pre_tokenizers.BertPreTokenizer()),
    "punctuation_next": byte_sequence(pre_tokenizers.Punctuation("merged_with_next"), pre_tokenizers.Digits(True)),
    "delimiter": byte_sequence(pre_tokenizers.CharDelimiterSplit("e")),
    "lower": byte_bpe(
        byte_level(use_regex=True),
        normalizer=normalizers.Sequence([normalizers.NFD(), normalizers.Lowercase(), normalizers.StripAccents()]),
    ),
    "nfkc": byte_bpe(
        byte_level(use_regex=True),
        normalizer=normalizers.Sequence([normalizers.NFKC(), normalizers.Replace(Regex(r"\s+"), " ")]),
    ),
    # Stripping to the right panics in the library where the last character has several bytes; a C test has it.
    "nfkd": byte_bpe(
        byte_level(use_regex=True),
        normalizer=normalizers.Sequence([normalizers.Strip(left=True, right=False), normalizers.NFKD()]),
    ),
    "bytes_normalizer": byte_bpe(split(r"Ġ?[^Ġ]+"), normalizer=normalizers.ByteLevel()),
    "llama2": sentencepiece(normalizer=llama2_normalizer(), decoder=llama2_decoder()),
    "llama2_metaspace": sentencepiece(metaspace("first", False), decoder=llama2_decoder()),
    "metaspace_always": sentencepiece(metaspace("always"), decoder=decoders.Metaspace("▁", "always")),
    "metaspace_first": sentencepiece(metaspace("first"), decoder=decoders.Metaspace("▁", "first")),
    "metaspace_never": sentencepiece(metaspace("never"), decoder=decoders.Metaspace("▁", "never")),
    "gemma": sentencepiece(
        pre_tokenizers.Split(" ", "merged_with_previous"),
        normalizers.Replace(" ", "▁"),
        decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]),
    ),
    "unknown_fused": sentencepiece(metaspace("first"), decoder=decoders.Metaspace("▁", "first"), bytes_in_vocab=False),
    "unknown_each": sentencepiece(
        metaspace("first"),
        fuse_unk=False,
        byte_fallback=False,
        bytes_in_vocab=False,
        decoder=decoders.Sequence([decoders.Replace(Regex("▁+"), " "), decoders.Strip(" ", 1, 0)]),
    ),
    "unknown_dropped": sentencepiece(metaspace("first"), unk=None, byte_fallback=False, bytes_in_vocab=False),
    "marked": sentencepiece(
        pre_tokenizers.Whitespace(),
        bytes_in_vocab=False,
        continuing_subword_prefix="##",
        end_of_word_suffix="</w>",
        decoder=decoders.Fuse(),
    ),
    "fused_end": sentencepiece(
        metaspace("first"),
        decoder=decoders.Sequence(
            [decoders.ByteFallback(), decoders.Fuse(), decoders.Replace("▁", " "), decoders.Strip(" ", 2, 0)]
        ),
    ),
}


def compare(mpk, folder, tokenizer, r, n):
    added = [t.content for t in tokenizer.get_added_tokens_decoder().values()]
    size = tokenizer.get_vocab_size()
    for i in range(n):
        data = random_bytes(r, added) if i % 3 == 2 else random_string(r, added).encode()
        text = data.decode(errors="replace")
        special = r.random() < 0.5
        want = tokenizer.encode(text, add_special_tokens=special).ids
        assert mpk.encode(folder, data, special) == want, (SEED, data, special)
        ids = want if r.random() < 0.5 else [r.randrange(size) for _ in range(r.randrange(1, 40))]
        expected = tokenizer.decode(ids, skip_special_tokens=False)
        assert mpk.decode(folder, ids).decode() == expected, (SEED, ids)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.draws(12)
def test_against_python(kind, mpk, tmp_path):
    r = random.Random(f"{SEED} {kind}")
    tokenizer = add_tokens(r, KINDS[kind](r))
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    compare(mpk, tmp_path, tokenizer, r, STRINGS)
    mpk.check_command(tmp_path, random_string(r, []).encode(), special=True)


def test_every_character(mpk, tmp_path):
    """Unicode, all but some of the large uniform blocks, through the classes and forms that libraries might see
    differently."""
    r = random.Random(SEED)
    dense = [
        *range(1, 0x3400),
        *range(0xA000, 0xAC00),
        *range(0xD7A4, 0xD800),
        *range(0xF900, 0x17000),
        *range(0x18CF0, 0x20000),
        *range(0xE0000, 0xE0200),
    ]
    rest = [c for c in range(0x3400, 0x110000) if not 0xD800 <= c < 0xE000]
    characters = sorted({*dense, *r.sample(rest, 6000)})
    for kind in ("gpt2", "o200k", "whitespace", "bert_split", "words", "lower", "nfkc", "nfkd", "qwen2", "starcoder"):
        folder = tmp_path / kind
        folder.mkdir()
        tokenizer = KINDS[kind](r)
        tokenizer.save(str(folder / "tokenizer.json"))
        for separator in ("", "a"):
            text = separator.join(map(chr, characters))
            want = tokenizer.encode(text, add_special_tokens=False).ids
            assert mpk.encode(folder, text.encode()) == want, (kind, separator)


# --- real vocabularies ---


@pytest.fixture(scope="session")
def vocabularies(tmp_path_factory):
    sdist = Path(os.environ.get("MPK_LLAMA_SDIST", ROOT / ".cache/llama_cpp_python-0.3.36.tar.gz"))
    assert sdist.exists(), f"{sdist} is missing: ./dev check fetches it, or set MPK_LLAMA_SDIST"
    folder = tmp_path_factory.mktemp("vocabularies")
    with tarfile.open(sdist) as tar:
        for member in tar:
            name = os.path.basename(member.name)
            if name.startswith("ggml-vocab-"):
                (folder / name).write_bytes(tar.extractfile(member).read())
    return folder


PASS = [
    "llama-bpe",
    "qwen2",
    "gpt-2",
    "llama-spm",
    "command-r",
    "deepseek-coder",
    "deepseek-llm",
    "falcon",
    "gemma-4",
    "mpt",
    "phi-3",
    "qwen35",
    "refact",
    "starcoder",
]
NORMALISED = ["qwen2"]  # the text comes back composed
REFUSED = {"aquila": "tokenizer.ggml.pre", "gpt-neox": "tokenizer.ggml.pre", "bert-bge": "bert", "nomic-bert-moe": "t5"}


@pytest.mark.parametrize("name", PASS)
def test_vectors(name, mpk, vocabularies):
    model = vocabularies / f"ggml-vocab-{name}.gguf"
    inputs = Path(f"{model}.inp").read_bytes().split(b"\n__ggml_vocab_test__\n")
    outputs = Path(f"{model}.out").read_text().split("\n")
    assert len(inputs) > 40 and len(outputs) >= len(inputs)
    for text, line in zip(inputs, outputs):
        ids = [int(i) for i in line.split()]
        assert mpk.encode(model, text) == ids, text
        assert name in NORMALISED or mpk.decode(model, ids) == text, ids
    mpk.check_command(model, inputs[-2])


@pytest.mark.parametrize("name", REFUSED)
def test_refused_by_name(name, mpk, vocabularies):
    assert REFUSED[name] in mpk.refusal(vocabularies / f"ggml-vocab-{name}.gguf")


def test_all_are_named(vocabularies):
    """baichuan has no vectors; every other vocabulary of the sdist passes or is refused above."""
    names = {p.name[len("ggml-vocab-") : -len(".gguf")] for p in vocabularies.glob("*.gguf")}
    assert names == {*PASS, *REFUSED, "baichuan"}
