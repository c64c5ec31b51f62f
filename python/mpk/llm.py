"""The engine's Python face: open a model, generate, stream.

import mpk
llm = mpk.LLM("model.gguf")
for answer in llm.generate(["Once upon a time"], mpk.SamplingParams(max_tokens=30)):
    print(answer.text)
for piece in llm.stream("Once upon a time"):
    print(piece.text, end="")
print(llm.chat([{"role": "user", "content": "What is a mega-kernel?"}], llm.suggested())[0].text)
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import json
import operator
import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Union, cast

from mpk import _library as c

Prompt = Union[str, Sequence[int]]
Message = Mapping[str, Any]
LogProbs = list[tuple[int, float]]
_DTYPES = {"f32": 0, "f16": 1, "bf16": 2, "q8_0": 11}
_ACTIVATIONS = ("auto", "f32", "i8")
_SPECULATION = ("none", "ngram")
_ROUTING = ("random", "even", "zipf", "same")
_POOLINGS = ("last", "mean")
_FORM_OBJECT, _FORM_SCHEMA, _FORM_REGEX, _FORM_CHOICE, _FORM_GRAMMAR, _FORM_TAG = 1, 2, 3, 4, 5, 6  # mpk_form
_EMBED_TEXTS = 256  # vectors of so many texts are computed before Python looks at its signals
_READ_MS = 100  # how long a read waits before Python looks at its signals again


@dataclasses.dataclass(frozen=True)
class SamplingParams:
    """How an answer is drawn.  temperature 0 takes the likeliest token; 0 turns top_k, min_p and max_tokens off.

    logit_bias: what is added to the logits of tokens; allowed_token_ids: no others come; bad_words: texts that do not
    come; min_tokens: the answer does not end before by itself; stop, stop_token_ids: texts, and tokens, that end it;
    include_stop_str_in_output: what ends it belongs to its text; priority: the least number comes first, in the queue,
    among prompts, and on a CPU for KV memory; logprobs, prompt_logprobs: log probabilities of each token of the answer,
    of the prompt, and of so many of the most probable ones (0: of none); prompt_only: compute the prompt and nothing
    else, so that the answer is empty, for prompt_logprobs or to fill the prefix cache; cache_salt: only requests with
    the same one share what they have in the prefix cache; prefix_cache: False computes the whole prompt; draft_tokens:
    how many are tried ahead in a step at most, if the engine speculates (None: the engine's number).

    n: answers to each prompt, which share it in the KV cache; the i-th has seed + i.  best_of: so many are computed (0:
    n), of which generate returns the n of the highest mean log probability, the best first.

    One of these says what the answer looks like: json_schema (a JSON schema, as an object or as text), json_object (any
    JSON object), regex (an expression that matches the whole answer), choice (texts, of which it is one), grammar
    (GBNF), structural_tag (texts, forms and free text put together, an object).
    """

    max_tokens: int = 0
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int = 0
    stop: Sequence[str] = ()
    stop_token_ids: Sequence[int] = ()
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    raw_prompt: bool = False
    prompt_only: bool = False
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    top_n_sigma: float = 0.0
    typical_p: float = 1.0
    min_tokens: int = 0
    logit_bias: Mapping[int, float] | None = None
    allowed_token_ids: Sequence[int] = ()
    bad_words: Sequence[str] = ()
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    cache_salt: str = ""
    prefix_cache: bool = True
    draft_tokens: int | None = None
    priority: int = 0
    json_schema: Mapping[str, Any] | bool | str | None = None
    json_object: bool = False
    regex: str | None = None
    choice: Sequence[str] = ()
    grammar: str | None = None
    structural_tag: Mapping[str, Any] | str | None = None
    n: int = 1
    best_of: int = 0

    def _each(self) -> list[SamplingParams]:
        """The parameters of each answer that is computed."""
        wanted = self.best_of or self.n
        if not 1 <= self.n <= wanted:
            raise c.ArgumentError(f"n is {self.n} and best_of {self.best_of}: expected 1 <= n <= best_of, or best_of 0")
        if wanted == 1:
            return [self]
        shown = self.logprobs if self.n == wanted else self.logprobs or 0  # the best ones are chosen by these
        seeds = [(self.seed + i) & (1 << 64) - 1 for i in range(wanted)]
        return [dataclasses.replace(self, seed=seed, logprobs=shown, n=1, best_of=0) for seed in seeds]

    def _choose(self, answers: list[Answer]) -> list[Answer]:
        """Of the answers to one prompt, those that are wanted."""
        if len(answers) == self.n:
            return answers
        best = sorted(answers, key=_mean_logprob, reverse=True)[: self.n]
        return best if self.logprobs is not None else [dataclasses.replace(a, logprobs=None) for a in best]

    def _to_c(self) -> c.RequestOptions:
        if not -(2**31) <= self.priority < 2**31:
            raise c.ArgumentError(f"priority is {self.priority}: expected {-(2**31)} to {2**31 - 1}")
        for name, bits in (("max_tokens", 32), ("top_k", 32), ("min_tokens", 32), ("seed", 64)):
            if not 0 <= int(getattr(self, name)) < 1 << bits:
                raise c.ArgumentError(f"{name} is {getattr(self, name)}: expected 0 to {(1 << bits) - 1}")
        stop = self._stops()
        options = c.RequestOptions(
            size=ctypes.sizeof(c.RequestOptions),
            max_tokens=int(self.max_tokens),
            temperature=self.temperature,
            top_k=int(self.top_k),
            top_p=self.top_p,
            min_p=self.min_p,
            seed=int(self.seed),
            n_stop=len(stop),
            ignore_eos=self.ignore_eos,
            include_stop=self.include_stop_str_in_output,
            priority=self.priority,
            stop_tokens=_token_ids(self.stop_token_ids),
            n_stop_tokens=len(self.stop_token_ids),
            raw_prompt=self.raw_prompt,
            prompt_only=self.prompt_only,
            no_prefix_cache=not self.prefix_cache,
            draft_tokens=self._drafts(),
            cache_salt=_without_nul("cache_salt", self.cache_salt).encode(),
        )
        options.stop = (ctypes.c_char_p * len(stop))(*(text.encode() for text in stop))
        self._add_rules(options)
        self._add_form(options)
        return options

    def _stops(self) -> list[str]:
        return [self.stop] if isinstance(self.stop, str) else list(self.stop)

    def _drafts(self) -> int:
        """As the library has it: 0 is the engine's number, -1 is none."""
        if self.draft_tokens is None:
            return 0
        if not 0 <= self.draft_tokens < 1 << 31:
            raise c.ArgumentError(f"draft_tokens is {self.draft_tokens}: expected 0 to 64, or None")
        return self.draft_tokens or -1

    def _add_form(self, options: c.RequestOptions) -> None:
        schema = self.json_schema if isinstance(self.json_schema, str) else json.dumps(self.json_schema)
        tag = self.structural_tag if isinstance(self.structural_tag, str) else json.dumps(self.structural_tag)
        forms = [
            (_FORM_OBJECT, "" if self.json_object else None),
            (_FORM_SCHEMA, None if self.json_schema is None else schema),
            (_FORM_REGEX, self.regex),
            (_FORM_GRAMMAR, self.grammar),
            (_FORM_TAG, None if self.structural_tag is None else tag),
            (_FORM_CHOICE, json.dumps(list(self.choice)) if self.choice else None),
        ]
        given = [(form, source) for form, source in forms if source is not None]
        if len(given) > 1:
            raise c.ArgumentError("give one of json_schema, json_object, regex, choice, grammar and structural_tag")
        for form, source in given:
            options.form, options.form_source = form, source.encode()

    def _add_rules(self, options: c.RequestOptions) -> None:
        biases, words = dict(self.logit_bias or {}), [word.encode() for word in self.bad_words]
        ids = _token_ids(list(biases))
        options.biases = (c.TokenBias * len(biases))(*zip(ids, biases.values()))
        options.n_biases = len(biases)
        options.allowed_tokens = _token_ids(self.allowed_token_ids)
        options.n_allowed = len(self.allowed_token_ids)
        options.bad_words = (ctypes.c_char_p * len(words))(*words)
        options.n_bad_words = len(words)
        for name in ("presence_penalty", "frequency_penalty", "repetition_penalty", "top_n_sigma", "typical_p"):
            setattr(options, name, getattr(self, name))
        options.min_tokens = self.min_tokens
        options.logprobs, options.prompt_logprobs = self.logprobs is not None, self.prompt_logprobs is not None
        wanted = max(self.logprobs or 0, self.prompt_logprobs or 0)
        if wanted < 0 or min(self.logprobs or 0, self.prompt_logprobs or 0) < 0:
            raise c.ArgumentError("logprobs and prompt_logprobs are 0 or more, or None")
        options.top_logprobs = wanted


@dataclasses.dataclass(frozen=True)
class Piece:
    """What has come since the piece before.  finish: "running" until the last one."""

    text: str
    token_ids: list[int]
    finish: str
    logprobs: list[LogProbs] | None = None


@dataclasses.dataclass(frozen=True)
class Answer:
    """A whole answer.  finish: "stop" (the model ended it, or a stop text came) or "length".

    logprobs: for each token, if SamplingParams.logprobs asks for them: pairs (token, log probability), the token's own
    first, after it the most probable ones; prompt_logprobs: the same of the prompt, None for its first token;
    cached_tokens: how many tokens of the prompt came from the prefix cache; drafted_tokens, accepted_tokens: how many
    were tried ahead, and how many of those stood; stop_reason: which of SamplingParams.stop and stop_token_ids ended
    it.
    """

    prompt: str | list[int]
    text: str
    token_ids: list[int]
    finish: str
    logprobs: list[LogProbs] | None = None
    prompt_logprobs: list[LogProbs | None] | None = None
    cached_tokens: int = 0
    drafted_tokens: int = 0
    accepted_tokens: int = 0
    stop_reason: str | int | None = None


class _Request:
    """A request of an engine, from submission until it is freed."""

    def __init__(self, llm: LLM, prompt: Prompt, params: SamplingParams) -> None:
        self.llm, self.prompt, self.lock = llm, prompt, threading.Lock()
        self.handle: ctypes.c_void_p | None = None
        self.params, self.n_read = params, 0
        handle, options = ctypes.c_void_p(), params._to_c()
        with llm._lock:
            engine = llm._engine()
            if isinstance(prompt, str):
                data = prompt.encode()
                c.call(c.lib.mpk_submit_text, engine, data, len(data), ctypes.byref(options), ctypes.byref(handle))
            else:
                ids = _token_ids(prompt)
                c.call(c.lib.mpk_submit_tokens, engine, ids, len(ids), ctypes.byref(options), ctypes.byref(handle))
            self.handle = handle
            llm._requests.add(self)

    def pieces(self) -> Iterator[Piece]:
        finish = "running"
        while finish == "running":
            piece = self.read()
            finish = piece.finish
            if piece.token_ids or piece.text or finish != "running":
                yield piece

    def read(self) -> Piece:
        piece = c.Piece()
        with self.lock:
            if not self.handle:
                raise c.ArgumentError("the engine of this request has been closed")
            c.Process.check(self.llm._forks)
            c.call(c.lib.mpk_request_read, self.handle, _READ_MS, ctypes.byref(piece))
            text = ctypes.string_at(piece.text, piece.n_bytes).decode() if piece.n_bytes else ""
            first, self.n_read = self.n_read, self.n_read + piece.n_tokens
            finish = c.lib.mpk_finish_name(piece.finish).decode()
            if self.params.logprobs is None:
                return Piece(text, piece.tokens[: piece.n_tokens], finish)
            shares = [
                self._entries(c.lib.mpk_request_logprobs, i, self.params.logprobs) for i in range(first, self.n_read)
            ]
            return Piece(text, piece.tokens[: piece.n_tokens], finish, shares)

    def _entries(self, function: Any, token: int, top: int) -> LogProbs:
        out = (c.LogProb * (1 + top))()
        n = function(self.handle, token, out, len(out))
        return [(entry.token, entry.logprob) for entry in out[:n]]

    def prompt_logprobs(self) -> list[LogProbs | None] | None:
        """Of each token of the prompt, once the answer has begun."""
        if self.params.prompt_logprobs is None:
            return None
        with self.lock:
            answer: list[LogProbs | None] = [None]
            while entries := self._entries(c.lib.mpk_prompt_logprobs, len(answer), self.params.prompt_logprobs):
                answer.append(entries)
            return answer

    def cached_tokens(self) -> int:
        """Of the prompt, once the answer has begun."""
        with self.lock:
            return c.lib.mpk_request_cached_tokens(self.handle) if self.handle else 0

    def stop_reason(self) -> str | int | None:
        """Once it has ended."""
        stops = [*self.params._stops(), *self.params.stop_token_ids]
        with self.lock:
            index = c.lib.mpk_request_stop(self.handle) if self.handle else -1
        return stops[index] if index >= 0 else None

    def drafts(self) -> tuple[int, int]:
        """Tokens that were tried ahead so far, and those that stood."""
        drafted, accepted = ctypes.c_size_t(), ctypes.c_size_t()
        with self.lock:
            if self.handle:
                c.lib.mpk_request_drafts(self.handle, ctypes.byref(drafted), ctypes.byref(accepted))
        return drafted.value, accepted.value

    def free(self) -> None:
        """Cancel it if it runs; another thread's read ends first."""
        with self.lock:
            handle, self.handle = self.handle, None
            if handle and self.llm._forks == c.Process.forks:
                c.lib.mpk_request_free(handle)
        self.llm._requests.discard(self)


class LLM:
    """A model, compiled and running: a Hugging Face folder, a GGUF file, or an image of `mpk compile`.

    threads: workers (0: one for each core); max_batch: requests that run at the same time; context_tokens: prompt
    and answer of a request at most; kv_dtype: "f32", "f16", "bf16", or on a CPU "q8_0" (8 bits an entry);
    random_weights: a configuration alone is a model; random_routing: which experts such a model prefers, "even", "zipf"
    or "same" (all tokens the same ones);
    device: "cpu", "cuda", "cuda:1", or "auto": the first GPU if it can be used, else the CPU; batch_invariant: on a GPU
    too a request gets the same bits alone and in any company; activations: "f32" or "i8", the form in which a CPU
    multiplies them by weights in GGUF blocks, or "auto": "i8" on a CPU; prefix_cache: prompts that begin as others did
    take that part from the KV cache; speculation: "ngram" tries up to draft_tokens (8) tokens a step that followed the
    last draft_ngram (3) of the request's text before, which changes no token; draft_model: a small model of the same
    vocabulary that guesses such tokens too, alone or after the text; gpus: peers that share the model, each with its
    part of the weights (on a CPU groups of threads, else GPUs from `device` on, linked by NVLink);
    keep_blocks: on a GPU weights in GGUF blocks stay in blocks, or become bf16; None: what is faster for max_batch;
    own_experts: each peer has some experts of a mixture whole, in the place of a share of every expert;
    embeddings: the model gives vectors (embed) and no text;
    lora: an adapter, a folder of PEFT or a GGUF file, that is merged into the weights, or (path, scale) to merge it so
    many times, or a list of several;
    meet: a path at which one process for each of the gpus meets the others; rank: which one this is; rank 0
    takes requests, the others call attend; meet_seconds: that they wait for each other (60).
    Requests of several threads may run at the same time.  Raises mpk.Error with what is wrong.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        threads: int = 0,
        max_batch: int = 0,
        step_tokens: int = 0,
        context_tokens: int = 0,
        kv_tokens: int = 0,
        kv_dtype: str = "f32",
        random_weights: bool = False,
        random_seed: int = 0,
        device: str = "auto",
        batch_invariant: bool = False,
        activations: str = "auto",
        prefix_cache: bool = True,
        gpus: int = 1,
        own_experts: bool = False,
        keep_blocks: bool | None = None,
        speculation: str = "none",
        draft_tokens: int = 0,
        draft_ngram: int = 0,
        draft_model: str | os.PathLike[str] | None = None,
        embeddings: bool = False,
        random_routing: str = "random",
        meet: str | os.PathLike[str] | None = None,
        rank: int = 0,
        meet_seconds: int = 0,
        lora: c.Adapters = (),
    ) -> None:
        self._handle: ctypes.c_void_p | None = None
        self._forks = c.Process.forks
        self._requests: set[_Request] = set()
        self._lock = threading.RLock()
        self._embedding = 0  # calls under way that use the engine without the lock
        self._closing: ctypes.c_void_p | None = None  # of an engine that the last of them closes
        if kv_dtype not in _DTYPES:
            raise c.ArgumentError(f"kv_dtype is {kv_dtype!r}: expected one of {', '.join(_DTYPES)}")
        if activations not in _ACTIVATIONS:
            raise c.ArgumentError(f"activations is {activations!r}: expected one of {', '.join(_ACTIVATIONS)}")
        if speculation not in _SPECULATION:
            raise c.ArgumentError(f"speculation is {speculation!r}: expected one of {', '.join(_SPECULATION)}")
        if random_routing not in _ROUTING:
            raise c.ArgumentError(f"random_routing is {random_routing!r}: expected one of {', '.join(_ROUTING)}")
        for name, value in (
            ("threads", threads),
            ("max_batch", max_batch),
            ("step_tokens", step_tokens),
            ("context_tokens", context_tokens),
            ("kv_tokens", kv_tokens),
            ("gpus", gpus),
            ("draft_tokens", draft_tokens),
            ("draft_ngram", draft_ngram),
            ("rank", rank),
            ("meet_seconds", meet_seconds),
        ):
            if not 0 <= value < 1 << 32:
                raise c.ArgumentError(f"{name} is {value}: expected 0 to {2**32 - 1}")
        adapters = c.list_adapters(lora)
        options = c.EngineOptions(
            size=ctypes.sizeof(c.EngineOptions),
            threads=threads,
            max_batch=max_batch,
            step_tokens=step_tokens,
            context_tokens=context_tokens,
            kv_tokens=kv_tokens,
            kv_dtype=_DTYPES[kv_dtype],
            random_weights=random_weights,
            random_seed=random_seed & (1 << 64) - 1,
            device=device.encode(),
            batch_invariant=batch_invariant,
            activations=_ACTIVATIONS.index(activations),
            no_prefix_cache=not prefix_cache,
            gpus=gpus,
            own_experts=own_experts,
            keep_blocks=0 if keep_blocks is None else 1 if keep_blocks else 2,
            speculation=_SPECULATION.index(speculation),
            draft_tokens=draft_tokens,
            draft_ngram=draft_ngram,
            draft_model=None if draft_model is None else os.fsencode(draft_model),
            embeddings=embeddings,
            random_routing=_ROUTING.index(random_routing),
            meet=None if meet is None else os.fsencode(meet),
            rank=rank,
            meet_seconds=meet_seconds,
            adapters=adapters,
            n_adapters=len(adapters),
        )
        handle = ctypes.c_void_p()
        c.call(c.lib.mpk_engine_open, os.fsencode(path), ctypes.byref(options), ctypes.byref(handle))
        self._handle = handle

    def generate(
        self, prompts: Prompt | Sequence[Prompt], params: SamplingParams | Sequence[SamplingParams] | None = None
    ) -> list[Answer]:
        """Answers to one prompt or several, which run together; a prompt is a text or a list of token ids.

        With SamplingParams(n=3) there are three for each prompt, one after the other.
        """
        texts = cast(list[Prompt], [prompts] if _is_one_prompt(prompts) else list(prompts))
        if params is None or isinstance(params, SamplingParams):
            each = [params or SamplingParams()] * len(texts)
        else:
            each = list(params)
        if len(each) != len(texts):
            raise c.ArgumentError(f"{len(texts)} prompts and {len(each)} sampling parameters")
        requests: list[_Request] = []
        try:
            for prompt, wanted in zip(texts, each):
                for one in wanted._each():
                    requests.append(_Request(self, prompt, one))
            answers = iter([_collect(request) for request in requests])
            return [a for wanted in each for a in wanted._choose([next(answers) for _ in wanted._each()])]
        finally:
            for request in requests:
                request.free()

    def stream(self, prompt: Prompt, params: SamplingParams | None = None) -> Iterator[Piece]:
        """The answer to one prompt piece by piece as it comes; closing the iterator cancels it."""
        if params and (params.n != 1 or params.best_of > 1):
            raise c.ArgumentError("n and best_of are of generate: a stream is one answer")
        request = _Request(self, prompt, params or SamplingParams())
        return _stream(request)

    def embed(
        self,
        texts: Prompt | Sequence[Prompt],
        *,
        pooling: str = "last",
        dimensions: int = 0,
        normalize: bool = True,
    ) -> list[list[float]]:
        """Vectors of one text or several, of an engine opened with embeddings=True; a text may be token ids.

        pooling: the final hidden state of the "last" token, or the "mean" of those of all; dimensions: only so many of
        the first numbers (0: all); normalize: to length 1.
        """
        if pooling not in _POOLINGS:
            raise c.ArgumentError(f"pooling is {pooling!r}: expected one of {', '.join(_POOLINGS)}")
        if not 0 <= dimensions < 1 << 32:
            raise c.ArgumentError(f"dimensions is {dimensions}: expected 0 to {2**32 - 1}")
        given = cast(list[Prompt], [texts] if _is_one_prompt(texts) else list(texts))
        facts = c.EngineFacts(size=ctypes.sizeof(c.EngineFacts))
        options = c.EmbedOptions(
            size=ctypes.sizeof(c.EmbedOptions),
            pooling=_POOLINGS.index(pooling),
            dimensions=dimensions,
            raw=not normalize,
        )
        ids = [_token_ids(self.tokenize(text) if isinstance(text, str) else text) for text in given]
        vectors: list[list[float]] = []
        with self._lock:
            c.lib.mpk_engine_describe(self._engine(), ctypes.byref(facts))
        size = min(dimensions or facts.embedding_size, facts.embedding_size)
        for at in range(0, len(ids), _EMBED_TEXTS):
            some = ids[at : at + _EMBED_TEXTS]
            array = (c.Tokens * len(some))(*(c.Tokens(text, len(text)) for text in some))
            out = (ctypes.c_float * (size * len(some)))()
            with self._unlocked_engine() as engine:
                c.call(c.lib.mpk_embed, engine, array, len(some), ctypes.byref(options), out)
            vectors.extend(list(out[i * size : (i + 1) * size]) for i in range(len(some)))
        return vectors

    @contextlib.contextmanager
    def _unlocked_engine(self) -> Iterator[ctypes.c_void_p]:
        """The engine for a long call: others use it meanwhile, and close leaves it open until the call is over."""
        with self._lock:
            engine = self._engine()
            self._embedding += 1
        try:
            yield engine
        finally:
            with self._lock:
                self._embedding -= 1
                if not self._embedding and self._closing:
                    closing, self._closing = self._closing, None
                    c.lib.mpk_engine_close(closing)

    def chat_prompt(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        chat_template: str | None = None,
        variables: Mapping[str, Any] | None = None,
        answer: bool = True,
    ) -> str:
        """The text that a conversation is to the model, by its chat template; answer: up to where the answer begins.

        messages: such as {"role": "user", "content": "Hello"}; tools: functions that it may call, as in OpenAI's API;
        chat_template: Jinja, instead of the model's own; variables: what else the template may ask for, such as
        {"enable_thinking": False}.  The text has its special tokens: stream it with SamplingParams(raw_prompt=True).
        """
        options = c.ChatOptions(
            size=ctypes.sizeof(c.ChatOptions),
            chat_template=_template(chat_template),
            tools=None if tools is None else json.dumps(list(tools)).encode(),
            variables=None if variables is None else json.dumps(dict(variables)).encode(),
            no_answer=not answer,
        )
        data, text, n = json.dumps(list(messages)).encode(), ctypes.c_void_p(), ctypes.c_size_t()
        with self._lock:
            c.call(
                c.lib.mpk_chat_prompt,
                self._tokenizer(),
                data,
                len(data),
                ctypes.byref(options),
                ctypes.byref(text),
                ctypes.byref(n),
            )
        try:
            return ctypes.string_at(text, n.value).decode()
        finally:
            c.lib.mpk_free(text)

    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        chat_template: str | None = None,
        variables: Mapping[str, Any] | None = None,
    ) -> list[Answer]:
        """Answers to one conversation or several, which run together; see chat_prompt and generate."""
        one = len(messages) > 0 and isinstance(messages[0], Mapping)
        conversations = cast(list[Sequence[Message]], [messages] if one else list(messages))
        prompts = [
            self.chat_prompt(m, tools=tools, chat_template=chat_template, variables=variables) for m in conversations
        ]
        if params is None or isinstance(params, SamplingParams):
            return self.generate(prompts, dataclasses.replace(params or SamplingParams(), raw_prompt=True))
        return self.generate(prompts, [dataclasses.replace(p, raw_prompt=True) for p in params])

    def suggested(self) -> SamplingParams:
        """Sampling as the model's makers suggest (generation_config.json); greedy where they say nothing."""
        options = SamplingParams()._to_c()
        with self._lock:
            c.lib.mpk_engine_suggest(self._engine(), ctypes.byref(options))
        return SamplingParams(
            temperature=options.temperature,
            top_k=options.top_k,
            top_p=options.top_p,
            min_p=options.min_p,
            typical_p=options.typical_p,
            repetition_penalty=options.repetition_penalty,
        )

    def tokenize(self, text: str, add_special: bool = True) -> list[int]:
        """Token ids of a text; add_special: with those before and after it that the model asks for."""
        ids, n, data = ctypes.POINTER(ctypes.c_int32)(), ctypes.c_size_t(), text.encode()
        with self._lock:
            c.call(
                c.lib.mpk_tokenize, self._tokenizer(), data, len(data), add_special, ctypes.byref(ids), ctypes.byref(n)
            )
        try:
            return ids[: n.value]
        finally:
            c.lib.mpk_free(ctypes.cast(ids, ctypes.c_void_p))

    def detokenize(self, ids: Sequence[int]) -> str:
        """The text of token ids."""
        data, n = ctypes.c_void_p(), ctypes.c_size_t()
        array = _token_ids(ids)
        with self._lock:
            c.call(c.lib.mpk_detokenize, self._tokenizer(), array, len(array), ctypes.byref(data), ctypes.byref(n))
        try:
            return ctypes.string_at(data, n.value).decode(errors="replace")
        finally:
            c.lib.mpk_free(data)

    def describe(self) -> dict[str, int]:
        """Sizes of the compiled model: vocabulary, bytes of weights and cache, graphs, tasks, events, times in ns; and
        what the prefix cache was asked for and had, in tokens of prompts; drafts that were tried and that stood.
        """
        facts = c.EngineFacts(size=ctypes.sizeof(c.EngineFacts))
        with self._lock:
            c.lib.mpk_engine_describe(self._engine(), ctypes.byref(facts))
        names = [name for name, _ in facts._fields_ if name not in ("size", "reserved", "reserved_2")]
        return {name: getattr(facts, name) for name in names}

    def attend(self) -> None:
        """Of a rank other than 0: compute until rank 0 closes its engine.  Raises mpk.Error if another rank ends."""
        with self._unlocked_engine() as engine:
            c.call(c.lib.mpk_engine_attend, engine)

    def close(self) -> None:
        """Stop the engine and free its memory; requests that run are cancelled.  Where another thread is in embed, its
        call for at most 256 texts goes on, and the engine is closed with it.
        """
        with self._lock:
            handle, self._handle = self._handle, None
            if self._forks != c.Process.forks:
                return
            for request in list(self._requests):
                request.free()
            if handle and self._embedding:
                self._closing = handle
            elif handle:
                c.lib.mpk_engine_close(handle)

    def _engine(self) -> ctypes.c_void_p:
        if not self._handle:
            raise c.ArgumentError("this LLM has been closed")
        c.Process.check(self._forks)
        return self._handle

    def _tokenizer(self) -> int:
        tokenizer = c.lib.mpk_engine_tokenizer(self._engine())
        if not tokenizer:
            raise c.UnsupportedError("this model has no tokenizer")
        return tokenizer

    def __enter__(self) -> LLM:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_handle", None):
            self.close()


def _without_nul(what: str, text: str) -> str:
    """The library's texts end with the first NUL."""
    if "\0" in text:
        raise c.ArgumentError(f"{what} holds a NUL character")
    return text


def _template(source: str | None) -> bytes | None:
    return None if source is None else _without_nul("the chat template", source).encode()


def _token_ids(ids: Sequence[int]):
    """As the library takes them."""
    whole = [operator.index(i) for i in ids]
    if any(not -(2**31) <= i < 2**31 for i in whole):
        raise c.ArgumentError("a token id does not fit into 32 bits")
    return (ctypes.c_int32 * len(whole))(*whole)


def _is_one_prompt(prompts: Prompt | Sequence[Prompt]) -> bool:
    return isinstance(prompts, str) or (len(prompts) > 0 and not isinstance(prompts[0], (str, list, tuple)))


def _mean_logprob(answer: Answer) -> float:
    own = [entries[0][1] for entries in answer.logprobs or []]
    return sum(own) / len(own) if own else float("-inf")


def _collect(request: _Request) -> Answer:
    pieces = list(request.pieces())
    prompt = request.prompt if isinstance(request.prompt, str) else list(request.prompt)
    ids = [t for p in pieces for t in p.token_ids]
    shares = None if request.params.logprobs is None else [s for p in pieces for s in p.logprobs or []]
    text = "".join(p.text for p in pieces)
    return Answer(
        prompt, text, ids, pieces[-1].finish, shares, request.prompt_logprobs(), request.cached_tokens(),
        *request.drafts(), request.stop_reason(),
    )


def _stream(request: _Request) -> Iterator[Piece]:
    try:
        yield from request.pieces()
    finally:
        request.free()
