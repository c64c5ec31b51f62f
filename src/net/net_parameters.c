/* net_parameters.c - the table of parameters, and the check of a body against it.
 *
 * A row for each name and the endpoints that know it.  A name without a row is ignored and named
 * in a header and in the log, so that clients with private additions are served; a name that
 * would change the answer and is not supported is refused, so that no client gets an answer that
 * was computed otherwise than it asked.  Called by net_request.c, net_rewrite.c and net_embed.c.
 * Cost: one search of the table for each member of the body.
 */

#include "net/net_parameters.h"

#include "net/net_rewrite.h"

/* How a parameter is treated. */
typedef enum kind {
    READ,    /* read by a reader of requests */
    INERT,   /* has no effect on any answer of this server: every value is accepted */
    REFUSED, /* refused if its value asks for something */
} kind;

/* Special values of `neutral`. */
enum {
    OVER_0 = -1, /* only a positive number asks for something */
    FROM_0 = -2, /* 0 asks for something, too */
};

/* One row.  A name may have rows of different kinds for different endpoints, but one row for an
 * endpoint. */
typedef struct parameter {
    const char *name;
    /* bits of NET_FOR_* */
    unsigned endpoints;
    kind kind;
    double neutral;  /* of REFUSED: the number that asks for nothing, or OVER_0 or FROM_0 */
    const char *why; /* of REFUSED: what the message says */
} parameter;

#define OPENAI (NET_FOR_COMPLETION | NET_FOR_CHAT)
#define BOTH (OPENAI | LLAMA)
#define GAPS NET_FOR_INFILL
#define LLAMA (NET_FOR_LLAMA | NET_FOR_INFILL)
#define VECTORS NET_FOR_VECTORS
#define ITEMS NET_FOR_RESPONSES
#define BLOCKS NET_FOR_MESSAGES
#define READS(name, endpoints)         \
    {                                  \
        name, endpoints, READ, 0, NULL \
    }
#define PASSES(name, endpoints)         \
    {                                   \
        name, endpoints, INERT, 0, NULL \
    }
#define REFUSES(name, endpoints, neutral, why) \
    {                                          \
        name, endpoints, REFUSED, neutral, why \
    }

/* Reasons that several rows share; shown after "'name' is not supported: ". */
static const char sampler[] = "the kernel draws tokens in other ways (docs/server.md)",
                  probabilities[] = "give 'logprobs', which are those of the answer",
                  one_model[] =
                      "the server has one model, with the adapters that it was started with",
                  text_only[] = "the model reads only text",
                  no_extras[] = "the reply has no such part",
                  stores_nothing[] = "the server stores nothing: send the whole conversation",
                  one_server[] = "prompts and answers are computed by one server",
                  no_plugins[] = "the server runs no code of others",
                  lazy_form[] = "give 'structural_tag': free text, and a form after a mark",
                  own_parser[] = "answers are read as the model's template writes them",
                  own_reasoning[] = "say in the template's variables whether the model shall think";

/* OpenAI. */
static const parameter of_openai[] = {
    READS("model", BOTH),
    READS("prompt", NET_FOR_COMPLETION | LLAMA),
    READS("messages", NET_FOR_CHAT),
    READS("temperature", BOTH),
    READS("top_p", BOTH),
    READS("n", BOTH),
    READS("seed", BOTH),
    READS("stop", BOTH),
    READS("stream", BOTH),
    READS("stream_options", BOTH),
    READS("max_tokens", BOTH),
    READS("max_completion_tokens", NET_FOR_CHAT), /* the newer name of max_tokens */
    READS("echo", NET_FOR_COMPLETION),
    READS("best_of", NET_FOR_COMPLETION), /* answers computed, of which n are returned */
    REFUSES("best_of", NET_FOR_CHAT | LLAMA, 1, "completions have it"),
    READS("logprobs", OPENAI),
    REFUSES("logprobs", LLAMA, 0, "give 'n_probs'"),
    READS("response_format", BOTH),
    READS("tools", NET_FOR_CHAT),
    READS("tool_choice", NET_FOR_CHAT),
    READS("parallel_tool_calls", NET_FOR_CHAT),
    READS("modalities", NET_FOR_CHAT), /* anything but text is refused by its reader */
    READS("reasoning_effort", NET_FOR_CHAT),
    PASSES("user", BOTH), /* for the client's own accounts */
    PASSES("metadata", NET_FOR_CHAT),
    PASSES("store", NET_FOR_CHAT),        /* nothing is stored, which is what most want */
    PASSES("service_tier", NET_FOR_CHAT), /* there is one */
    PASSES("safety_identifier", NET_FOR_CHAT),
    PASSES("prompt_cache_key", NET_FOR_CHAT), /* the prefix cache needs no hint */
    PASSES("prompt_cache_retention", NET_FOR_CHAT),
    PASSES("prompt_cache_options", NET_FOR_CHAT),
    PASSES("prediction", NET_FOR_CHAT), /* changes speed alone */
    REFUSES("moderation", NET_FOR_CHAT | ITEMS, 0, "the server judges no content"),
    READS("frequency_penalty", BOTH),
    READS("presence_penalty", BOTH),
    READS("logit_bias", BOTH),
    READS("top_logprobs", NET_FOR_CHAT),
    READS("suffix", NET_FOR_COMPLETION), /* infill, where the model has its tokens */
    REFUSES("audio", NET_FOR_CHAT, 0, text_only),
    REFUSES("functions", NET_FOR_CHAT, 0, "give 'tools'"),
    REFUSES("function_call", NET_FOR_CHAT, 0, "give 'tools' and 'tool_choice'"),
    REFUSES("verbosity", NET_FOR_CHAT, 0, "say in a message how long the answer shall be"),
    REFUSES("web_search_options", NET_FOR_CHAT, 0, "the server searches nothing"),
};

/* VLLM and SGLang. */
static const parameter of_engines[] = {
    READS("top_k", BOTH),
    READS("min_p", BOTH),      /* least weight beside the likeliest token's */
    READS("ignore_eos", BOTH), /* only max_tokens and stops end the answer */
    READS("min_tokens", BOTH),
    READS("add_special_tokens", BOTH),
    READS("truncate_prompt_tokens", BOTH), /* keep so many of the last tokens */
    READS("add_generation_prompt", NET_FOR_CHAT),
    READS("continue_final_message", NET_FOR_CHAT), /* the answer goes on with the last message */
    READS("chat_template", NET_FOR_CHAT),
    READS("chat_template_kwargs", NET_FOR_CHAT),
    READS("documents", NET_FOR_CHAT),
    READS("skip_special_tokens", BOTH), /* only true is served: they have no text */
    READS("include_reasoning", NET_FOR_CHAT),
    READS("separate_reasoning", NET_FOR_CHAT),
    PASSES("spaces_between_special_tokens", BOTH),
    PASSES("request_id", BOTH),
    PASSES("rid", BOTH), /* SGLang's request_id */
    READS("cache_salt", BOTH),
    PASSES("stream_reasoning", NET_FOR_CHAT),
    PASSES("session_id", BOTH),
    PASSES("stream_interval", BOTH), /* pieces are sent as they come */
    PASSES("custom_labels", BOTH),   /* for metrics of the client's own */
    PASSES("routed_dp_rank", BOTH),  /* there is one engine to route to */
    PASSES("data_parallel_rank", BOTH),
    PASSES("disagg_prefill_dp_rank", BOTH),
    PASSES("routed_experts_prompt_start", BOTH),
    PASSES("routed_experts_start_len", BOTH),
    PASSES("return_cached_tokens_details", BOTH),
    PASSES("return_mm_kwargs", BOTH),
    REFUSES("watermarking", BOTH, 0, sampler),
    REFUSES("repetition_detection", BOTH, 0, "give 'repetition_penalty'"),
    REFUSES("truncation_side", BOTH, 0, "a prompt that is cut keeps its last tokens"),
    REFUSES("logprob_token_ids", BOTH, 0, probabilities),
    REFUSES("echo", NET_FOR_CHAT, 0, "completions have it"),
    REFUSES("task", NET_FOR_CHAT, 0, "say in a message what is to be done"),
    REFUSES("extra_key", BOTH, 0, "give 'cache_salt'"),
    REFUSES("return_prompt_text", NET_FOR_CHAT, 0, no_extras),
    REFUSES("return_token_offsets", BOTH, 0, no_extras),
    REFUSES("return_routed_experts", BOTH, 0, no_extras),
    REFUSES("ec_transfer_params", BOTH, 0, no_plugins),
    REFUSES("bootstrap_host", BOTH, 0, one_server),
    REFUSES("bootstrap_port", BOTH, 0, one_server),
    REFUSES("bootstrap_room", BOTH, 0, one_server),
    REFUSES("max_dynamic_patch", NET_FOR_CHAT, 0, text_only),
    REFUSES("min_dynamic_patch", NET_FOR_CHAT, 0, text_only),
    REFUSES("use_audio_in_video", NET_FOR_CHAT, 0, text_only),
    READS("repetition_penalty", BOTH),
    REFUSES("length_penalty", BOTH, 1, sampler),
    REFUSES("use_beam_search", BOTH, 0, sampler),
    READS("stop_token_ids", BOTH),
    REFUSES("stop_regex", BOTH, 0, "give 'stop'"),
    READS("include_stop_str_in_output", BOTH),
    READS("no_stop_trim", BOTH), /* SGLang's name of include_stop_str_in_output */
    READS("allowed_token_ids", BOTH),
    READS("bad_words", BOTH),
    REFUSES("logits_processors", BOTH, 0, no_plugins),
    REFUSES("custom_logit_processor", BOTH, 0, no_plugins),
    REFUSES("custom_params", BOTH, 0, no_plugins),
    READS("prompt_logprobs", NET_FOR_COMPLETION | NET_FOR_CHAT),
    REFUSES("prompt_logprobs", LLAMA, FROM_0, "completions have it"),
    READS("structured_outputs", BOTH),
    READS("guided_json", BOTH),
    READS("guided_regex", BOTH),
    READS("guided_choice", BOTH),
    READS("guided_grammar", BOTH),
    READS("structural_tag", BOTH),
    READS("regex", BOTH),    /* SGLang's guided_regex */
    READS("ebnf", BOTH),     /* SGLang's guided_grammar */
    READS("priority", BOTH), /* of the requests that wait, the least number begins first */
    REFUSES("lora_path", BOTH, 0, one_model),
    READS("return_tokens_as_token_ids", NET_FOR_COMPLETION | NET_FOR_CHAT), /* token_id:N */
    READS("return_token_ids", NET_FOR_COMPLETION | NET_FOR_CHAT),
    REFUSES("return_tokens_as_token_ids", LLAMA, 0, no_extras),
    REFUSES("return_token_ids", LLAMA, 0, "give 'return_tokens'"),
    REFUSES("return_hidden_states", BOTH, 0, no_extras),
    REFUSES("kv_transfer_params", BOTH, 0, no_plugins),
    REFUSES("vllm_xargs", BOTH, 0, no_plugins),
    REFUSES("session_params", BOTH, 0, "send the whole conversation"),
    REFUSES("mm_processor_kwargs", BOTH, 0, text_only),
    REFUSES("media_io_kwargs", NET_FOR_CHAT, 0, text_only),
    REFUSES("prompt_embeds", NET_FOR_COMPLETION, 0, "give 'prompt'"),
    REFUSES("thinking_token_budget", BOTH, 0, own_reasoning),
};

/* Llama-server. */
static const parameter of_llama[] = {
    READS("n_predict", BOTH), /* max_tokens; -1: until the context is full */
    READS("n_cmpl", BOTH),    /* n */
    READS("reasoning_format", NET_FOR_CHAT),
    READS("cache_prompt", BOTH),
    READS("speculative.n_max", BOTH),  /* drafts a step at most */
    PASSES("speculative.n_min", BOTH), /* no answer depends on drafts */
    PASSES("speculative.p_min", BOTH),
    PASSES("id_slot", BOTH), /* every prompt is cached, whatever its slot */
    REFUSES("repeat_last_n", BOTH, OVER_0,
            "penalties count the whole text: give -1, or 0 for none"),
    PASSES("dynatemp_exponent", BOTH), /* without dynatemp_range it means nothing */
    PASSES("xtc_threshold", BOTH),     /* without xtc_probability */
    PASSES("dry_base", BOTH),          /* and the next: without dry_multiplier */
    PASSES("dry_allowed_length", BOTH),
    PASSES("dry_penalty_last_n", BOTH),
    PASSES("dry_sequence_breakers", BOTH),
    PASSES("mirostat_tau", BOTH), /* and the next: without mirostat */
    PASSES("mirostat_eta", BOTH),
    PASSES("parse_tool_calls", NET_FOR_CHAT),
    READS("repeat_penalty", BOTH), /* repetition_penalty */
    READS("typical_p", BOTH),
    READS("top_n_sigma", BOTH),
    REFUSES("dynatemp_range", BOTH, 0, sampler),
    REFUSES("xtc_probability", BOTH, 0, sampler),
    REFUSES("dry_multiplier", BOTH, 0, sampler),
    REFUSES("mirostat", BOTH, 0, sampler),
    REFUSES("samplers", BOTH, 0, sampler),
    REFUSES("min_keep", BOTH, 0, sampler),
    REFUSES("adaptive_target", BOTH, FROM_0, sampler),
    PASSES("adaptive_decay", BOTH), /* without adaptive_target */
    PASSES("backend_sampling", BOTH),
    PASSES("n_cache_reuse", BOTH),
    READS("sse_ping_interval", BOTH), /* seconds; -1: never */
    REFUSES("verbose", BOTH, 0, no_extras),
    REFUSES("grammar_lazy", BOTH, 0, lazy_form),
    REFUSES("grammar_triggers", BOTH, 0, lazy_form),
    REFUSES("grammar_type", BOTH, 0, lazy_form),
    REFUSES("preserved_tokens", BOTH, 0, "special tokens have no text"),
    REFUSES("chat_format", BOTH, 0, own_parser),
    REFUSES("chat_parser", BOTH, 0, own_parser),
    REFUSES("generation_prompt", BOTH, 0, own_parser),
    REFUSES("reasoning_control", BOTH, 0, own_reasoning),
    REFUSES("reasoning_budget_tokens", BOTH, FROM_0, own_reasoning),
    PASSES("reasoning_budget_start_tag", BOTH),
    PASSES("reasoning_budget_end_tag", BOTH),
    PASSES("reasoning_budget_end_tags", BOTH),
    PASSES("reasoning_budget_message", BOTH),
    READS("input_prefix", GAPS), /* the text before the gap */
    READS("input_suffix", GAPS), /* and after it */
    READS("input_extra", GAPS),  /* other files of the project */
    READS("grammar", BOTH),      /* as guided_grammar */
    READS("json_schema", BOTH),
    READS("n_probs", LLAMA), /* tokens with probabilities, beside each of the answer */
    REFUSES("n_probs", OPENAI, 0, probabilities),
    REFUSES("post_sampling_probs", LLAMA, 0, "'n_probs' alone gives those before the sampling"),
    REFUSES("post_sampling_probs", OPENAI, 0, probabilities),
    REFUSES("n_indent", BOTH, 0, "lines end where the model ends them"),
    REFUSES("n_keep", BOTH, 0, "a context that is full ends the answer"), /* no shifting */
    REFUSES("n_discard", BOTH, 0, "a context that is full ends the answer"),
    REFUSES("t_max_predict_ms", BOTH, OVER_0, "give 'max_tokens'"),
    READS("return_tokens", LLAMA),
    REFUSES("return_tokens", OPENAI, 0, "give 'return_token_ids'"),
    REFUSES("timings_per_token", BOTH, 0, no_extras),
    REFUSES("return_progress", BOTH, 0, no_extras),
    REFUSES("response_fields", BOTH, 0, no_extras),
    REFUSES("lora", BOTH, 0, one_model),
    REFUSES("thinking_forced_open", NET_FOR_CHAT, 0, "the template says where reasoning begins"),
};

/* OpenAI's responses, as vLLM has them too.  Members that mean what they do in a chat are those of
 * net_rewrite_same. */
static const parameter of_responses[] = {
    READS("model", ITEMS | BLOCKS),
    READS("tools", ITEMS | BLOCKS),
    READS("tool_choice", ITEMS | BLOCKS),
    READS("chat_template_kwargs", ITEMS | BLOCKS),
    READS("input", ITEMS),
    READS("instructions", ITEMS), /* becomes a system message */
    READS("max_output_tokens", ITEMS),
    READS("parallel_tool_calls", ITEMS),
    READS("reasoning", ITEMS),
    READS("text", ITEMS), /* its form is a response_format */
    READS("stop", ITEMS),
    READS("truncation", ITEMS),
    READS("include", ITEMS),
    PASSES("metadata", ITEMS | BLOCKS),
    PASSES("service_tier", ITEMS | BLOCKS),
    PASSES("store", ITEMS),
    PASSES("stream_options", ITEMS),
    PASSES("user", ITEMS),
    PASSES("safety_identifier", ITEMS),
    PASSES("prompt_cache_key", ITEMS),
    PASSES("prompt_cache_retention", ITEMS),
    PASSES("prompt_cache_options", ITEMS),
    PASSES("request_id", ITEMS | BLOCKS),
    PASSES("rid", ITEMS | BLOCKS),
    PASSES("max_tool_calls", ITEMS),
    REFUSES("previous_response_id", ITEMS, 0, stores_nothing),
    REFUSES("conversation", ITEMS, 0, stores_nothing),
    REFUSES("prompt", ITEMS, 0, stores_nothing),
    REFUSES("background", ITEMS, 0, stores_nothing),
    REFUSES("context_management", ITEMS, 0, stores_nothing),
    REFUSES("previous_response", ITEMS, 0, "send the whole conversation as 'input'"),
    REFUSES("previous_input_messages", ITEMS, 0, "send the whole conversation as 'input'"),
    REFUSES("enable_response_messages", ITEMS, 0, no_extras),
    REFUSES("access_programs", ITEMS, 0, "the server runs no tools"),
    REFUSES("image", ITEMS, 0, text_only),
    REFUSES("extra_key", ITEMS, 0, "give 'cache_salt'"),
    REFUSES("top_logprobs", ITEMS, 0, "chats and completions have log probabilities"),
    REFUSES("mm_processor_kwargs", ITEMS | BLOCKS, 0, text_only),
    REFUSES("vllm_xargs", ITEMS | BLOCKS, 0, no_plugins),
    REFUSES("kv_transfer_params", ITEMS | BLOCKS, 0, no_plugins),
};

/* Anthropic's messages. */
static const parameter of_blocks[] = {
    READS("messages", BLOCKS),
    READS("system", BLOCKS),
    READS("max_tokens", BLOCKS),
    READS("stop_sequences", BLOCKS),
    READS("thinking", BLOCKS), /* the template's enable_thinking */
    READS("output_config", BLOCKS),
    READS("context_management", BLOCKS),
    PASSES("cache_control", BLOCKS),
    PASSES("inference_geo", BLOCKS),
    PASSES("speed", BLOCKS),
    PASSES("user_profile_id", BLOCKS),
    PASSES("workspace_id", BLOCKS),
    PASSES("billing_policy", BLOCKS),
    PASSES("fallback_credit_token", BLOCKS),
    REFUSES("fallbacks", BLOCKS, 0, one_model),
    REFUSES("compaction", BLOCKS, 0, stores_nothing),
    REFUSES("thread", BLOCKS, 0, stores_nothing),
    REFUSES("diagnostics", BLOCKS, 0, no_extras),
    REFUSES("container", BLOCKS, 0, "the server runs no tools"),
    REFUSES("mcp_servers", BLOCKS, 0, "the server runs no tools"),
    READS("output_format", BLOCKS),
};

/* Vectors, as OpenAI, vLLM, SGLang and Cohere have them. */
static const parameter of_vectors[] = {
    READS("model", VECTORS),
    READS("input", VECTORS),
    READS("encoding_format", VECTORS),
    READS("dimensions", VECTORS),
    READS("truncate_prompt_tokens", VECTORS),
    READS("add_special_tokens", VECTORS),
    READS("embed_dtype", VECTORS), /* and the next two: what the reply has anyway, or refused */
    READS("endianness", VECTORS),
    READS("use_activation", VECTORS),
    REFUSES("embd_normalize", VECTORS, 2, "vectors have length 1, which 2 asks for"),
    READS("text_1", VECTORS), /* and the next six: of /v1/score, as it may be called */
    READS("text_2", VECTORS),
    READS("data_1", VECTORS),
    READS("data_2", VECTORS),
    READS("queries", VECTORS),
    READS("items", VECTORS),
    READS("query", VECTORS), /* and the next two: of /v1/rerank */
    READS("documents", VECTORS),
    READS("top_n", VECTORS),
    PASSES("user", VECTORS),
    PASSES("request_id", VECTORS),
    PASSES("rid", VECTORS),
    PASSES("cache_salt", VECTORS),            /* every text is computed whole */
    PASSES("add_generation_prompt", VECTORS), /* and the next four belong to messages */
    PASSES("continue_final_message", VECTORS),
    PASSES("chat_template", VECTORS),
    PASSES("chat_template_kwargs", VECTORS),
    PASSES("media_io_kwargs", VECTORS),
    READS("return_documents", VECTORS), /* of /v1/rerank */
    REFUSES("return_text", VECTORS, 0, "give 'return_documents'"),
    REFUSES("content", VECTORS, 0, "give 'input'"),
    REFUSES("texts", VECTORS, 0, "give 'documents'"),
    REFUSES("padding", VECTORS, 0, "a text is computed as long as it is"),
    REFUSES("truncation_side", VECTORS, 0, "the last tokens are kept"),
    REFUSES("instruct", VECTORS, 0, "put it before the text"),
    REFUSES("label_token_ids", VECTORS, 0, "scores are cosines"),
    REFUSES("apply_softmax", VECTORS, 0, "scores are cosines"),
    REFUSES("item_first", VECTORS, 0, "scores are cosines"),
    REFUSES("softmax", VECTORS, 0, "scores are cosines"),
    REFUSES("activation", VECTORS, 0, "scores are cosines"),
    REFUSES("raw_scores", VECTORS, 0, "scores are cosines"),
    REFUSES("embed_override_token_id", VECTORS, FROM_0, no_plugins),
    REFUSES("embed_overrides", VECTORS, 0, no_plugins),
    REFUSES("query_embed_overrides", VECTORS, 0, no_plugins),
    REFUSES("item_embed_overrides", VECTORS, 0, no_plugins),
    REFUSES("return_pooled_hidden_states", VECTORS, 0, no_extras),
    REFUSES("max_tokens_per_doc", VECTORS, 0, "give 'truncate_prompt_tokens'"),
    REFUSES("messages", VECTORS, 0, "give 'input'"),
    REFUSES("task", VECTORS, 0, "put the instruction before the text"),
    REFUSES("instruction", VECTORS, 0, "put it before the text"),
    REFUSES("mm_processor_kwargs", VECTORS, 0, text_only),
    REFUSES("priority", VECTORS, 0, "texts are computed in their order of arrival"),
    REFUSES("lora_path", VECTORS, 0, one_model),
};

/* A name may be in several of these, for other endpoints. */
#define TABLE(rows)                         \
    {                                       \
        rows, sizeof(rows) / sizeof *(rows) \
    }
static const struct {
    const parameter *at;
    size_t n;
} tables[] = {TABLE(of_openai),    TABLE(of_engines), TABLE(of_llama),
              TABLE(of_responses), TABLE(of_blocks),  TABLE(of_vectors)};

/* The row of this name for an endpoint; NULL: the name is unknown. */
static const parameter *find(str name, unsigned endpoint)
{
    static const parameter as_in_chats = READS("", ITEMS | BLOCKS);
    if ((endpoint & as_in_chats.endpoints) && net_rewrites_same(name))
        return &as_in_chats;
    for (size_t t = 0; t < sizeof tables / sizeof *tables; t++)
        for (const parameter *p = tables[t].at; p < tables[t].at + tables[t].n; p++)
            if ((p->endpoints & endpoint) && str_is(name, p->name))
                return p;
    return NULL;
}

/* Does a value ask for something?  null, false, "", [] and {} never do. neutral: the value that
 * stands for "off"; OVER_0 and FROM_0 stand for "off below": for OVER_0 anything above 0 asks, for
 * FROM_0 also 0 does. For example 0 is neutral for a penalty. */
static bool asks_for(const json_value *v, double neutral)
{
    switch (v->kind) {
    case JSON_KIND_NULL:
        return false;
    case JSON_KIND_BOOL:
        return v->boolean;
    case JSON_KIND_NUMBER:
        if (neutral == OVER_0 || neutral == FROM_0)
            return v->number > 0 || (v->number == 0 && neutral == FROM_0);
        return v->number != neutral;
    case JSON_KIND_STRING:
        return v->text.n > 0;
    case JSON_KIND_LIST:
    case JSON_KIND_OBJECT:
        return v->n > 0;
    }
    return true;
}

/* Append an unknown name to the list.  It comes from the client and goes to a header and the
 * log, so whatever is not printable becomes a question mark. */
static void note_ignored(str name, char *ignored)
{
    size_t n = strlen(ignored);
    if (n + name.n + 3 > NET_IGNORED_BYTES)
        return;
    if (n) {
        memcpy(ignored + n, ", ", 2);
        n += 2;
    }
    for (size_t i = 0; i < name.n; i++)
        ignored[n++] = name.at[i] > ' ' && name.at[i] < 127 && name.at[i] != ',' ? name.at[i] : '?';
    ignored[n] = 0;
}

/* The first refused parameter decides; unknown ones before it are collected. */
mpk_status net_parameters_check(mpk_context *cx, const json_value *body, unsigned endpoint,
                                char ignored[NET_IGNORED_BYTES], net_refusal *why)
{
    ignored[0] = 0;
    for (size_t i = 0; i < body->n; i++) {
        const json_value *v = &body->items[i];
        const parameter *p = find(v->key, endpoint);
        if (!p && v->kind != JSON_KIND_NULL)
            note_ignored(v->key, ignored);
        if (p && p->kind == REFUSED && asks_for(v, p->neutral))
            return net_refuse(cx, why, 400, p->name, NULL, "'%s' is not supported: %s", p->name,
                              p->why);
    }
    return MPK_OK;
}
