"""The APIs of mpk serve as the official clients use them, and what becomes of every documented parameter."""

import inspect
import json
import re

import anthropic
import pytest
from anthropic.resources.beta.messages import Messages as BetaMessages
from anthropic.resources.messages import Messages
from openai.resources.chat.completions import Completions as ChatCompletions
from openai.resources.completions import Completions
from openai.resources.responses import Responses

import support
import tiny
from serving import CHAT, MESSAGES, Server, busy, chat, endless, model, server  # noqa: F401, the last are fixtures

TEMPLATE = {"chat_template": CHAT}
THINKING = {"chat_template": CHAT.replace("assistant:", "assistant: <think>\n")}
GREEDY = {"temperature": 0, "ignore_eos": True}
TOOL = {"name": "add", "description": "adds", "input_schema": {"type": "object"}}
FUNCTION = {"type": "function", "name": "add", "description": "adds", "parameters": {"type": "object"}}


def claude(s):
    return anthropic.Anthropic(base_url=f"http://{s.host}:{s.port}", api_key="none", max_retries=0)


# ---- Anthropic's messages ----

def test_messages_are_a_chat(server):
    text = chat(server)["choices"][0]["message"]["content"]
    wanted = dict(model="tiny", max_tokens=12, messages=MESSAGES, extra_body={**TEMPLATE, **GREEDY})
    whole = claude(server).messages.create(**wanted)
    assert [b.text for b in whole.content] == [text] and whole.stop_reason == "max_tokens"
    assert whole.id.startswith("msg_") and whole.role == "assistant" and whole.usage.output_tokens == 12
    assert whole.usage.input_tokens == chat(server)["usage"]["prompt_tokens"]
    with claude(server).messages.stream(**wanted) as stream:
        assert "".join(stream.text_stream) == text
        final = stream.get_final_message()
    assert final.content[0].text == text and final.stop_reason == "max_tokens"
    assert final.usage.output_tokens == 12 and final.usage.input_tokens == whole.usage.input_tokens
    blocks = [{"role": "user", "content": [{"type": "text", "text": "in the", "cache_control": {"type": "ephemeral"}}]}]
    assert claude(server).messages.create(**{**wanted, "messages": blocks}).content == whole.content


def test_messages_stop_and_think(server):
    wanted = dict(model="tiny", max_tokens=40, messages=MESSAGES)
    text = claude(server).messages.create(**wanted, extra_body={**TEMPLATE, **GREEDY}).content[0].text
    stop = text[len(text) // 2:][:2]
    cut = claude(server).messages.create(**wanted, stop_sequences=["never there", stop],
                                         extra_body={**TEMPLATE, **GREEDY})
    assert cut.stop_reason == "stop_sequence" and cut.stop_sequence == stop
    assert cut.content[0].text == text[:text.index(stop)]
    thought = claude(server).messages.create(**wanted, extra_body={**THINKING, **GREEDY})
    assert [b.type for b in thought.content] == ["thinking"]
    with claude(server).messages.stream(**wanted, extra_body={**THINKING, **GREEDY}) as stream:
        kinds = [e.type for e in stream]
    assert kinds[0] == "message_start" and kinds[-1] == "message_stop" and "content_block_start" in kinds
    assert stream.get_final_message().content[0].thinking == thought.content[0].thinking


def test_messages_count(server):
    counted = claude(server).messages.count_tokens(model="tiny", messages=MESSAGES, extra_body=TEMPLATE)
    assert counted.input_tokens == chat(server)["usage"]["prompt_tokens"]
    more = claude(server).messages.count_tokens(model="tiny", messages=MESSAGES, system="the the", extra_body=TEMPLATE)
    assert more.input_tokens > counted.input_tokens


def test_prompts_are_counted_by_other_names(server):
    n = chat(server)["usage"]["prompt_tokens"]
    counted = server.client().responses.input_tokens.count(model="tiny", input="in the", extra_body=TEMPLATE)
    assert (counted.input_tokens, counted.object) == (n, "response.input_tokens")
    for path in ("/v1/chat/completions/input_tokens", "/chat/completions/input_tokens"):
        assert server.post(path, {"messages": MESSAGES, "chat_template": CHAT}) == {"input_tokens": n}
        assert server.post(path, {"messages": []}, 400)["error"]["param"] == "messages"


def prompt_of(s, path, body):
    """The prompt of a request, by a template that refuses it and says what it would have been."""
    template = ("{% set text %}{{ messages | tojson }}{{ tools | tojson }}{% endset %}"
                "{{ raise_exception('<<<' ~ text ~ '>>>') }}")
    reply = s.post(path, {"model": s.name, "chat_template": template, **body}, 400)
    return re.search("<<<(.*)>>>", reply["error"]["message"], re.S)[1]


def test_messages_with_tools_reach_the_template(server):
    body = {"max_tokens": 5, "system": [{"type": "text", "text": "be"}, {"type": "text", "text": "kind"}],
            "tools": [TOOL], "messages": [
                {"role": "user", "content": "2?"},
                {"role": "assistant", "content": [{"type": "thinking", "thinking": "hm", "signature": ""},
                                                  {"type": "text", "text": "so"},
                                                  {"type": "tool_use", "id": "t1", "name": "add", "input": {"a": 1}}]},
                {"role": "user", "content": [{"type": "text", "text": "well?"},
                                             {"type": "tool_result", "tool_use_id": "t1", "is_error": True,
                                              "content": [{"type": "text", "text": "no"}]},
                                             {"type": "tool_result", "tool_use_id": "t2", "content": "yes"},
                                             {"type": "tool_result", "tool_use_id": "t3", "is_error": False,
                                              "content": "maybe"}]}]}
    seen = prompt_of(server, "/v1/messages", body)
    for part in ('"role": "system", "content": "be\\nkind"', '"content": "so"', '"reasoning_content": "hm"',
                 '"arguments": {"a": 1}', '"tool_call_id": "t1", "content": "Error: no"',
                 '"tool_call_id": "t2", "content": "yes"', '"tool_call_id": "t3", "content": "maybe"',
                 '"content": "well?"',
                 '"parameters": {"type": "object"}', '"description": "adds"'):
        assert part in seen, (part, seen)
    assert seen.index("Error: no") < seen.index("well?")


def test_messages_continue_the_assistant(server):
    ids = server.post("/tokenize", {"content": "user: in the\nassistant: the in"})["tokens"]
    text = server.complete(ids, max_tokens=12)["choices"][0]["text"]
    reply = claude(server).messages.create(model="tiny", max_tokens=12,
                                           messages=[*MESSAGES, {"role": "assistant", "content": "the in"}],
                                           extra_body={**TEMPLATE, **GREEDY})
    assert reply.content[0].text == text


def test_errors_of_messages(server):
    wanted = dict(model="tiny", max_tokens=12, messages=MESSAGES)
    with pytest.raises(anthropic.NotFoundError) as e:
        claude(server).messages.create(**{**wanted, "model": "claude"})
    assert e.value.body["type"] == "error" and e.value.body["error"]["type"] == "not_found_error"
    for more in ({"tool_choice": {"type": "tool", "name": "nobody"}, "tools": [TOOL]},
                 {"tools": [{"type": "web_search", "name": "w"}]},
                 {"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]}, {"messages": []},
                 {"messages": [{"role": "tool", "content": "x"}]}, {"messages": [{"role": "user", "content": 1}]},
                 {"system": 1}, {"tools": {}}, {"extra_body": {"mcp_servers": [{}]}}):
        with pytest.raises(anthropic.BadRequestError) as e:
            claude(server).messages.create(**{**wanted, "extra_body": TEMPLATE, **more})
        assert e.value.body["error"]["type"] == "invalid_request_error" and e.value.body["request_id"]
    for tool in ({"input_schema": {}}, {"name": ""}, {**TOOL, "type": "web_search"}):
        with pytest.raises(anthropic.BadRequestError, match="item 0 is not a tool of the client's own"):
            claude(server).messages.create(**wanted, tools=[tool], extra_body=TEMPLATE)
    for data in (b"", b"[]", b"{", b'{"messages": 1}'):
        assert server.ask("POST", "/v1/messages", data)[0] == 400
        assert server.ask("POST", "/v1/responses", data)[0] == 400


def test_keys_of_messages(model):
    with Server(model, "--api-key", "secret") as s:
        assert s.ask("GET", "/v1/models", headers={"X-Api-Key": "secret"})[0] == 200
        with pytest.raises(anthropic.AuthenticationError):
            claude(s).messages.create(model="tiny", max_tokens=1, messages=MESSAGES)


# ---- OpenAI's responses ----

def test_responses_are_a_chat(server):
    text = chat(server)["choices"][0]["message"]["content"]
    wanted = dict(model="tiny", input="in the", max_output_tokens=12,
                  extra_body={**TEMPLATE, **GREEDY})
    client = server.client()
    whole = client.responses.create(**wanted, metadata={"a": "b"})
    assert whole.output_text == text and whole.status == "incomplete"
    assert whole.incomplete_details.reason == "max_output_tokens" and whole.metadata == {"a": "b"}
    assert whole.usage.output_tokens == 12 and whole.temperature == 0
    assert client.responses.create(**{**wanted, "input": MESSAGES}).output_text == text
    events = list(client.responses.create(**wanted, stream=True))
    assert [e.sequence_number for e in events] == list(range(len(events)))
    assert [e.type for e in events[:4]] == ["response.created", "response.in_progress", "response.output_item.added",
                                            "response.content_part.added"]
    for e in events[:2]:  # the same though the answer may have ended by then
        assert (e.response.status, e.response.usage, e.response.incomplete_details, e.response.output) == (
            "in_progress", None, None, [])
    assert [e.type for e in events[-4:]] == ["response.output_text.done", "response.content_part.done",
                                             "response.output_item.done", "response.incomplete"]
    assert "".join(e.delta for e in events if e.type == "response.output_text.delta") == text
    assert events[-1].response.output_text == text and events[-1].response.usage == whole.usage


def test_responses_think(server):
    wanted = dict(model="tiny", input="in the", max_output_tokens=12,
                  extra_body={**THINKING, **GREEDY})
    whole = server.client().responses.create(**wanted)
    assert [i.type for i in whole.output] == ["reasoning"] and whole.output[0].content[0].text
    events = list(server.client().responses.create(**wanted, stream=True))
    assert events[-1].response.output[0].content == whole.output[0].content


def test_responses_with_tools_reach_the_template(server):
    body = {"instructions": "be kind", "tools": [FUNCTION], "input": [
        {"role": "developer", "content": "well"}, {"type": "message", "role": "user", "content": [
            {"type": "input_text", "text": "2"}, {"type": "input_text", "text": "?"}]},
        {"type": "reasoning", "id": "r", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]},
        {"type": "function_call", "call_id": "c1", "name": "add", "arguments": '{"a": 1}'},
        {"type": "function_call_output", "call_id": "c1", "output": "2"}]}
    seen = prompt_of(server, "/v1/responses", body)
    for part in ('"role": "system", "content": "be kind"', '"role": "system", "content": "well"', '"content": "2\\n?"',
                 '"reasoning_content": "hm"', '"arguments": {"a": 1}', '"tool_call_id": "c1", "content": "2"',
                 '"parameters": {"type": "object"}'):
        assert part in seen, (part, seen)


def test_errors_of_responses(server):
    for more, param in (({"previous_response_id": "resp_1"}, "previous_response_id"), ({"input": 1}, "input"),
                        ({"input": [{"type": "item_reference", "id": "x"}]}, "input"), ({"background": True}, None),
                        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input"),
                        ({"tools": [{"type": "web_search"}]}, "tools"), ({"truncation": "auto"}, "truncation"),
                        ({"text": {"format": {"type": "yaml"}}}, "text"), ({"instructions": 1}, "instructions"),
                        ({"max_output_tokens": -1}, "max_output_tokens")):
        error = server.post("/v1/responses", {"input": "x", **TEMPLATE, **more}, 400)["error"]
        assert error["param"] == param or param is None
        assert "'max_tokens'" not in error["message"]  # the chat's name, which the client did not send


# ---- the demo model ----

@pytest.mark.skipif(not support.DEMO_MODEL.exists(), reason="no demo model")
def test_demo_model_answers_every_api():
    question = "What is the capital of France? Answer in one word."
    with Server(support.DEMO_MODEL, "--any-model-name") as s:
        answer = claude(s).messages.create(model="claude", max_tokens=20, extra_body={"temperature": 0},
                                           messages=[{"role": "user", "content": question}])
        assert "Paris" in answer.content[0].text and answer.stop_reason == "end_turn"
        whole = s.client().responses.create(model="gpt", input=question, temperature=0)
        assert "Paris" in whole.output_text and whole.status == "completed"
        with s.client().responses.stream(model="gpt", input=question, temperature=0) as stream:
            assert stream.get_final_response().output_text == whole.output_text


# ---- every documented parameter ----

WORKS, INERT, REFUSED = "works", "changes no answer", "refused by name"
SHARED = {  # name: a value that asks for something, what becomes of it
    "temperature": (0.5, WORKS), "top_p": (0.9, WORKS), "n": (2, WORKS), "seed": (7, WORKS), "stop": (["zz"], WORKS),
    "stream": (False, WORKS), "max_tokens": (3, WORKS), "top_k": (5, WORKS), "min_p": (0.1, WORKS),
    "ignore_eos": (True, WORKS), "add_special_tokens": (True, WORKS), "truncate_prompt_tokens": (2, WORKS),
    "n_predict": (3, WORKS), "n_cmpl": (2, WORKS), "skip_special_tokens": (True, WORKS), "user": ("u", INERT),
    "spaces_between_special_tokens": (True, INERT), "request_id": ("r", INERT), "rid": ("r", INERT),
    "cache_salt": ("s", WORKS), "cache_prompt": (False, WORKS), "id_slot": (0, INERT), "repeat_last_n": (5, REFUSED),
    "speculative.n_max": (3, WORKS), "speculative.n_min": (1, INERT), "speculative.p_min": (0.5, INERT),
    "dynatemp_exponent": (2, INERT), "xtc_threshold": (0.2, INERT), "dry_base": (2, INERT),
    "dry_allowed_length": (3, INERT), "dry_penalty_last_n": (9, INERT), "dry_sequence_breakers": (["a"], INERT),
    "mirostat_tau": (4, INERT), "mirostat_eta": (0.2, INERT), "frequency_penalty": (0.5, WORKS),
    "presence_penalty": (0.5, WORKS), "repetition_penalty": (1.1, WORKS), "repeat_penalty": (1.1, WORKS),
    "length_penalty": (1.1, REFUSED), "logit_bias": ({"5": 1}, WORKS), "prompt_logprobs": (1, WORKS),
    "best_of": (3, REFUSED), "min_tokens": (2, WORKS),
    "use_beam_search": (True, REFUSED), "stop_token_ids": ([1], WORKS), "stop_regex": ("a", REFUSED),
    "include_stop_str_in_output": (True, WORKS), "no_stop_trim": (True, WORKS), "bad_words": (["a"], WORKS),
    "allowed_token_ids": ([1], WORKS), "logits_processors": (["a"], REFUSED),
    "custom_logit_processor": ("a", REFUSED), "custom_params": ({"a": 1}, REFUSED),
    "response_format": ({"type": "json_object"}, WORKS), "structured_outputs": ({"json": {}}, WORKS),
    "guided_json": ({"type": "object"}, WORKS), "guided_regex": ("a", WORKS), "guided_choice": (["a"], WORKS),
    "guided_grammar": ('root ::= "a"', WORKS), "structural_tag": ({"format": {"type": "any_text"}}, WORKS),
    "regex": ("a", WORKS),
    "ebnf": ('root ::= "a"', WORKS), "grammar": ('root ::= "a"', WORKS), "json_schema": ({"type": "object"}, WORKS),
    "priority": (1, WORKS), "lora_path": ("a", REFUSED), "lora": ([{"id": 0}], REFUSED),
    "return_tokens_as_token_ids": (True, WORKS), "return_token_ids": (True, WORKS),
    "return_hidden_states": (True, REFUSED), "kv_transfer_params": ({"a": 1}, REFUSED),
    "vllm_xargs": ({"a": 1}, REFUSED), "session_params": ({"a": 1}, REFUSED),
    "mm_processor_kwargs": ({"a": 1}, REFUSED), "thinking_token_budget": (5, REFUSED), "typical_p": (0.5, WORKS),
    "top_n_sigma": (1, WORKS), "dynatemp_range": (0.5, REFUSED), "xtc_probability": (0.5, REFUSED),
    "dry_multiplier": (0.5, REFUSED), "mirostat": (1, REFUSED), "samplers": (["top_k"], REFUSED),
    "min_keep": (1, REFUSED), "n_probs": (2, REFUSED), "post_sampling_probs": (True, REFUSED), "n_indent": (2, REFUSED),
    "n_keep": (2, REFUSED), "n_discard": (2, REFUSED), "t_max_predict_ms": (5, REFUSED),
    "return_tokens": (True, REFUSED),
    "session_id": ("a", INERT), "stream_interval": (3, INERT), "custom_labels": ({"a": "b"}, INERT),
    "routed_dp_rank": (1, INERT), "data_parallel_rank": (1, INERT), "disagg_prefill_dp_rank": (1, INERT),
    "routed_experts_prompt_start": (1, INERT), "routed_experts_start_len": (1, INERT),
    "return_cached_tokens_details": (True, INERT), "return_mm_kwargs": (True, INERT), "watermarking": (True, REFUSED),
    "repetition_detection": ({"a": 1}, REFUSED), "truncation_side": ("right", REFUSED),
    "logprob_token_ids": ([1], REFUSED), "extra_key": ("a", REFUSED), "return_token_offsets": (True, REFUSED),
    "return_routed_experts": (True, REFUSED), "ec_transfer_params": ({"a": 1}, REFUSED),
    "bootstrap_host": ("a", REFUSED), "bootstrap_port": (1, REFUSED), "bootstrap_room": (1, REFUSED),
    "adaptive_target": (0.0, REFUSED), "adaptive_decay": (0.5, INERT), "backend_sampling": (True, INERT),
    "n_cache_reuse": (8, INERT), "sse_ping_interval": (5, WORKS), "verbose": (True, REFUSED),
    "grammar_lazy": (True, REFUSED), "grammar_triggers": ([{"type": 1, "value": "a"}], REFUSED),
    "grammar_type": ("tool_calls", REFUSED), "preserved_tokens": (["a"], REFUSED), "chat_format": (1, REFUSED),
    "chat_parser": ("a", REFUSED), "generation_prompt": ("a", REFUSED), "reasoning_control": (True, REFUSED),
    "reasoning_budget_tokens": (0, REFUSED), "reasoning_budget_start_tag": ("a", INERT),
    "reasoning_budget_end_tag": ("a", INERT), "reasoning_budget_end_tags": (["a"], INERT),
    "reasoning_budget_message": ("a", INERT),
    "timings_per_token": (True, REFUSED), "return_progress": (True, REFUSED), "response_fields": (["a"], REFUSED),
}
REWRITTEN = {  # of responses and messages, as in chats
    name: SHARED[name] for name in (
        "temperature", "top_p", "top_k", "min_p", "seed", "stream", "ignore_eos", "min_tokens", "presence_penalty",
        "frequency_penalty", "repetition_penalty", "repeat_penalty", "logit_bias", "bad_words", "allowed_token_ids",
        "typical_p", "top_n_sigma", "stop_token_ids", "include_stop_str_in_output", "skip_special_tokens",
        "structured_outputs", "cache_salt", "cache_prompt", "priority", "truncate_prompt_tokens", "request_id", "rid",
        "mm_processor_kwargs", "vllm_xargs", "kv_transfer_params")}
PARAMETERS = {
    "/v1/completions": {**SHARED, "logprobs": (2, WORKS), "best_of": (3, WORKS), "echo": (True, WORKS),
    "suffix": ("", WORKS),
    "prompt_embeds": ("a", REFUSED)},
    "/v1/chat/completions": {
        **SHARED, "logprobs": (True, WORKS), "max_completion_tokens": (3, WORKS), "tool_choice": ("none", WORKS),
        "tools": ([{"type": "function", "function": {"name": "f"}}], WORKS), "parallel_tool_calls": (False, WORKS),
        "modalities": (["text"], WORKS), "reasoning_effort": ("low", WORKS), "add_generation_prompt": (False, WORKS),
        "continue_final_message": (True, WORKS), "chat_template_kwargs": ({"a": 1}, WORKS),
        "documents": ([{"text": "a"}], WORKS), "include_reasoning": (False, WORKS), "separate_reasoning": (True, WORKS),
        "reasoning_format": ("deepseek", WORKS), "metadata": ({"a": "b"}, INERT), "store": (True, INERT),
        "service_tier": ("auto", INERT), "safety_identifier": ("a", INERT), "prompt_cache_key": ("a", INERT),
        "prompt_cache_retention": ("24h", INERT), "prompt_cache_options": ({"mode": "explicit"}, INERT),
        "moderation": ({"model": "a"}, REFUSED), "prediction": ({"type": "content", "content": "a"}, INERT),
        "stream_reasoning": (True, INERT), "parse_tool_calls": (True, INERT), "audio": ({"voice": "a"}, REFUSED),
        "functions": ([{"name": "f"}], REFUSED), "function_call": ("auto", REFUSED), "verbosity": ("low", REFUSED),
        "web_search_options": ({"a": 1}, REFUSED), "media_io_kwargs": ({"a": 1}, REFUSED),
        "thinking_forced_open": (True, REFUSED), "echo": (True, REFUSED), "task": ("query", REFUSED),
        "return_prompt_text": (True, REFUSED), "max_dynamic_patch": (1, REFUSED), "min_dynamic_patch": (1, REFUSED),
        "use_audio_in_video": (True, REFUSED)},
    "/completion": {
        **SHARED, "n_probs": (2, WORKS), "return_tokens": (True, WORKS), "logprobs": (2, REFUSED),
        "prompt_logprobs": (1, REFUSED), "return_token_ids": (True, REFUSED),
        "return_tokens_as_token_ids": (True, REFUSED)},
    "/v1/responses": {
        **REWRITTEN, "tool_choice": ("none", WORKS), "tools": ([FUNCTION], WORKS),
        "instructions": ("a", WORKS), "max_output_tokens": (3, WORKS), "parallel_tool_calls": (False, WORKS),
        "reasoning": ({"effort": "low"}, WORKS), "text": ({"format": {"type": "text"}}, WORKS), "stop": (["zz"], WORKS),
        "truncation": ("disabled", WORKS), "metadata": ({"a": "b"}, INERT), "service_tier": ("auto", INERT),
        "store": (True, INERT), "user": ("u", INERT), "safety_identifier": ("a", INERT),
        "prompt_cache_key": ("a", INERT), "prompt_cache_retention": ("24h", INERT), "max_tool_calls": (3, INERT),
        "include": (["reasoning.encrypted_content"], INERT), "previous_response_id": ("a", REFUSED),
        "conversation": ("a", REFUSED), "prompt": ({"id": "a"}, REFUSED), "background": (True, REFUSED),
        "context_management": ([{"type": "compaction"}], REFUSED), "top_logprobs": (2, REFUSED),
        "prompt_cache_options": ({"mode": "explicit"}, INERT), "moderation": ({"model": "a"}, REFUSED),
        "access_programs": ([{"name": "a"}], REFUSED), "image": ({"size": "a"}, REFUSED),
        "enable_response_messages": (True, REFUSED), "previous_input_messages": ([{"role": "user"}], REFUSED),
        "previous_response": ({"id": "a"}, REFUSED), "extra_key": ("a", REFUSED)},
    "/v1/messages": {
        **REWRITTEN, "tools": ([TOOL], WORKS), "tool_choice": ({"type": "none"}, WORKS), "system": ("a", WORKS),
        "stop_sequences": (["zz"], WORKS), "thinking": ({"type": "disabled"}, WORKS), "output_config": ({}, WORKS),
        "metadata": ({"user_id": "u"}, INERT), "service_tier": ("auto", INERT),
        "cache_control": ({"type": "ephemeral"}, INERT), "inference_geo": ("eu", INERT), "container": ("a", REFUSED),
        "speed": ("fast", INERT), "user_profile_id": ("a", INERT), "workspace_id": ("a", INERT),
        "billing_policy": ("a", INERT), "fallback_credit_token": ("a", INERT), "fallbacks": (["a"], REFUSED),
        "compaction": ({"a": 1}, REFUSED), "thread": ({"id": "a"}, REFUSED), "diagnostics": ({"a": 1}, REFUSED),
        "context_management": ({"edits": [{"type": "clear_tool_uses_20250919"}]}, REFUSED),
        "chat_template_kwargs": ({"a": 1}, WORKS),
        "mcp_servers": ([{"name": "a"}], REFUSED), "output_format": ({"type": "json_schema", "schema": {}}, WORKS)},
}
BODIES = {"/v1/completions": {"prompt": "in the", "max_tokens": 3},
          "/v1/chat/completions": {"messages": MESSAGES, "max_tokens": 3, **TEMPLATE},
          "/completion": {"prompt": "in the", "n_predict": 3},
          "/v1/responses": {"input": "in the", "max_output_tokens": 3, **TEMPLATE},
          "/v1/messages": {"messages": MESSAGES, "max_tokens": 3, **TEMPLATE}}


@pytest.mark.parametrize("path", PARAMETERS)
def test_no_parameter_is_silent(busy, path):
    for name, (value, outcome) in PARAMETERS[path].items():
        status, headers, reply = busy.ask("POST", path, {**BODIES[path], name: value})
        if outcome == REFUSED:
            assert status == 400 and f"'{name}'" in reply["error"]["message"], (name, reply)
            assert path == "/v1/messages" or reply["error"]["param"] == name
        else:
            assert status == 200 and "X-Ignored-Parameters" not in headers, (name, reply)
    assert busy.ask("POST", path, {**BODIES[path], "colour": 1})[1]["X-Ignored-Parameters"] == "colour"


OFF = {"adaptive_target": -1.0, "reasoning_budget_tokens": -1, "repeat_last_n": 0, "t_max_predict_ms": 0, "n_keep": 0,
       "grammar_lazy": False, "dry_multiplier": 0.0, "mirostat": 0, "xtc_probability": 0.0, "n_probs": 0, "lora": [],
       "samplers": [], "preserved_tokens": [], "chat_format": 0, "priority": 0, "stop_token_ids": [], "n_indent": 0}


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_what_asks_for_nothing_is_taken(server, path):
    """As clients send it that send every setting."""
    plain = server.post(path, {**BODIES[path], **GREEDY})["choices"]
    assert server.post(path, {**BODIES[path], **GREEDY, **OFF})["choices"] == plain


def test_biases_as_llama_server_has_them(server, model):
    size, random = tiny.config_of(model)["vocab_size"], support.seed()
    banned = random.sample(range(size), size - 40)
    wanted = server.complete(allowed_token_ids=[i for i in range(size) if i not in banned])["choices"]
    assert server.complete(logit_bias=[[i, False] for i in banned])["choices"] == wanted
    assert server.complete(logit_bias={str(i): False for i in banned})["choices"] == wanted
    pairs = [(i, random.randint(-50, 50) / 10) for i in banned]
    as_object = server.complete(logit_bias={str(i): bias for i, bias in pairs})["choices"]
    assert server.complete(logit_bias=pairs)["choices"] == as_object != server.complete()["choices"]
    for faulty in ([[5]], [["a", 1]], [[5, True]], {"a": 1}, [[1 << 40, 1]]):
        error = server.post("/v1/completions", {"prompt": "a", "logit_bias": faulty}, 400)["error"]
        assert error["param"] == "logit_bias"


# by other tests
OTHERS = {"model", "prompt", "messages", "stream_options", "top_logprobs", "chat_template", "input", "max_tokens"}


def test_the_parameters_of_other_servers():
    """Each name that their requests have, as far as peer_parameters.json lists them."""
    for peer in json.loads((support.ROOT / "tests/peer_parameters.json").read_text()):
        if peer["path"] not in PARAMETERS:
            continue  # of vectors: test_embeddings.py
        missing = set(peer["parameters"]) - set(PARAMETERS[peer["path"]]) - OTHERS
        assert not missing, (peer["server"], peer["path"], sorted(missing))


@pytest.mark.parametrize("path, call", [
    ("/v1/completions", Completions.create),
    ("/v1/chat/completions", ChatCompletions.create),
    ("/v1/responses", Responses.create),
    ("/v1/messages", Messages.create),
    ("/v1/messages", BetaMessages.create)])
def test_the_parameters_of_official_clients(path, call):
    """Each name that the calls of the clients that are installed have."""
    no_members = {"self", "extra_headers", "extra_query", "extra_body", "timeout", "betas"}
    missing = set(inspect.signature(call).parameters) - no_members - set(PARAMETERS[path]) - OTHERS
    assert not missing, sorted(missing)


def test_what_messages_and_responses_take_in_part(busy):
    for word in ("clear_thinking", "clear_thinking_20251015"):
        thinking = {"context_management": {"edits": [{"type": word, "keep": "all"}]}}
        assert busy.ask("POST", "/v1/messages", {**BODIES["/v1/messages"], **thinking})[0] == 200
    nameless = {"context_management": {"edits": [{}]}}
    assert busy.ask("POST", "/v1/messages", {**BODIES["/v1/messages"], **nameless})[0] == 400
    assert busy.ask("POST", "/v1/responses", {**BODIES["/v1/responses"], "input": [{"role": "user"}]})[0] == 200
    included = {**BODIES["/v1/responses"], "include": ["message.output_text.logprobs"]}
    status, _, reply = busy.ask("POST", "/v1/responses", included)
    assert status == 400 and reply["error"]["param"] == "include"


def test_penalties_and_biases_of_responses_and_messages(server, model):
    size = tiny.config_of(model)["vocab_size"]
    for path in ("/v1/responses", "/v1/messages"):
        body = {**BODIES[path], "temperature": 0, "ignore_eos": True}
        texts = [json.dumps([part["text"] for item in reply.get("output", [reply]) for part in item["content"]])
                 for more in ({}, {"logit_bias": {str(i): -100 for i in range(0, size, 2)}}, {"repetition_penalty": 2})
                 for reply in [server.post(path, {**body, **more})]]
        assert len(set(texts)) > 1, texts


def test_every_parameter_is_documented():
    words = set(re.findall(r"`([\w.]+)", (support.ROOT / "docs/server.md").read_text()))
    missing = {name for table in PARAMETERS.values() for name in table} - words
    assert not missing, sorted(missing)


def test_the_dashboard_knows_our_metrics(server):
    server.ask("GET", "/health")
    words = server.ask("GET", "/metrics")[2]
    board = json.loads((support.ROOT / "examples/grafana.json").read_text())
    expressions = [t["expr"] for p in board["panels"] for t in p["targets"]]
    names = {n for e in expressions for n in re.findall(r"mpk_\w+", e)}
    assert len(names) >= 14 and all(re.search(rf"^{n}[ {{]", words, re.M) for n in names), names
