/* net_calls.c - the form of an answer that calls tools, written as the model's template writes
 * calls.
 *
 * Input: the tools and tool_choice of a request.  Output: a structural tag
 * (docs/structured-output.md) in q->sampling.
 *
 * Idea: the template itself shows how it writes calls.  It renders a conversation with a call of
 * the function probe_of_calls, and the style is recognised in the result.  For the style
 * NET_CALLS_BLOCKS one call is
 *
 *   <tool_call>\n{"name": "f", "arguments": {..}}\n</tool_call>
 *
 * and its tag has that text with the arguments' schema in the place of {..}.
 *
 * Called by net_chat.c through net_calls_hold.  Relies on src/grammar for structural tags, by
 * way of the engine.  Cost: one to four more renderings, for requests whose calls are held.
 */
#include "net/net_calls.h"
#include "net/net_tagged.h"

/* How a style writes calls: OPEN, then for each call BEFORE name AFTER arguments END, with
 * BETWEEN between two of them, then CLOSE. */
typedef struct spelling {
    const char *open, *before, *after, *end, *between, *close;
    bool quotes; /* the name is a JSON text */
    bool alone;  /* the template allows one call in a message */
    bool tagged; /* arguments stand in tags, not in an object */
    bool lines;  /* each on lines of its own */
} spelling;

/* By net_call_style; NET_CALLS_ANY, the style that is not known, has none. */
static const spelling spellings[] = {
    [NET_CALLS_BLOCKS] = {"", "<tool_call>\n{\"name\": ", ", \"arguments\": ", "}\n</tool_call>",
                          "\n", "", .quotes = true},
    [NET_CALLS_OBJECT] = {"", "{\"name\": ", ", \"parameters\": ", "}", "", "", .quotes = true,
                          .alone = true},
    [NET_CALLS_LIST] = {"[", "{\"name\": ", ", \"arguments\": ", "}", ", ", "]", .quotes = true},
    [NET_CALLS_FENCED] = {NET_CALLS_BEGIN, NET_CALL_BEGIN "function" NET_CALL_SEP, "\n```json\n",
                          "\n```" NET_CALL_END, "\n", .close = NET_CALLS_END},
    [NET_CALLS_MARKED] = {NET_CALLS_BEGIN, NET_CALL_BEGIN, NET_CALL_SEP, NET_CALL_END, "",
                          .close = NET_CALLS_END},
    [NET_CALLS_TAGGED] = {"", "<tool_call>\n<function=", ">\n", "</function>\n</tool_call>", "\n",
                          "", .tagged = true, .lines = true},
    [NET_CALLS_ARGS] = {"", "[TOOL_CALLS]", "[ARGS]", "", "", .close = ""},
    [NET_CALLS_CHANNEL] = {"", "<|channel|>commentary to=functions.",
                           " <|constrain|>json<|message|>", "", "", "", .alone = true},
    [NET_CALLS_SEED] = {"", "<seed:tool_call>\n<function=", ">\n", "</function>\n</seed:tool_call>",
                        "\n", "", .tagged = true},
};

/* The mark with which calls of a style begin; empty: they begin as JSON. */
static str opening(const spelling *s)
{
    if (*s->open)
        return str_from(s->open);
    return (str){s->before, *s->before == '{' ? 0 : strcspn(s->before, ">]") + 1};
}

/* 400: the request asks for calls that cannot be enforced, and why. */
static mpk_status refuse(net_exchange *x, const char *what)
{
    return net_refuse(x->cx, &x->refusal, 400, "tool_choice", NULL,
                      "calls of tools cannot be enforced: %s", what);
}

/* ---- the template's style ---- */

/* The name of the function in the probe; no template and no client has it. */
#define PROBE "probe_of_calls"

static bool holds(const text *t, const char *words)
{
    return t->n && memmem(t->at, t->n, words, strlen(words)) != NULL;
}

/* Render a conversation with a call into *to.  Templates differ in the content and the arguments
 * that they accept beside a call, so four combinations are tried; *to stays without the probe's
 * name if none of them works. */
static mpk_status render_probe(net_exchange *x, const net_request *q, text *to)
{
    static const char *const contents[] = {"\"\"", "null"}, *const arguments[] = {"{\"k\":\"v\"}",
                                                                                  "\"{}\""};
    for (unsigned i = 0; i < 4 && !holds(to, PROBE); i++) {
        text t = {0};
        text_print(&t,
                   "[{\"role\":\"user\",\"content\":\"x\"},{\"role\":\"assistant\",\"content\":%s,"
                   "\"tool_calls\":["
                   "{\"id\":\"abcdefghi\",\"type\":\"function\",\"function\":{\"name\":\"" PROBE
                   "\",\"arguments\":%s}}]}]",
                   contents[i % 2], arguments[i / 2]);
        CHECK(x->cx, !t.failed, MPK_ENOMEM, "out of memory for the form of calls");
        mpk_status status = net_chat_render(x, q, (str){t.at, t.n}, q->tools, to);
        text_free(&t);
        x->refusal = (net_refusal){0};
        if (status == MPK_ENOMEM)
            return status;
    }
    return MPK_OK;
}

/* Recognise the style in a rendered probe.  The formats of <function=..> without tags for
 * arguments is known but cannot be enforced here. */
static net_call_style style_of(const text *t)
{
    const bool tagged = holds(t, "<function=" PROBE ">\n<parameter=k>");
    if (tagged && holds(t, "<seed:tool_call>"))
        return NET_CALLS_SEED;
    if (tagged && holds(t, "<tool_call>"))
        return NET_CALLS_TAGGED;
    if (holds(t, "<|channel|>") && holds(t, "to=functions." PROBE))
        return NET_CALLS_CHANNEL;
    if (holds(t, "[TOOL_CALLS]" PROBE))
        return holds(t, "[ARGS]") ? NET_CALLS_ARGS : NET_CALLS_ANY;
    if (!holds(t, PROBE) || holds(t, "<function="))
        return NET_CALLS_ANY;
    if (holds(t, "\"" PROBE "\", \"parameters\":"))
        return NET_CALLS_OBJECT;
    if (holds(t, "[TOOL_CALLS]"))
        return NET_CALLS_LIST;
    if (holds(t, "function" NET_CALL_SEP PROBE))
        return NET_CALLS_FENCED;
    if (holds(t, NET_CALL_BEGIN PROBE NET_CALL_SEP))
        return NET_CALLS_MARKED;
    return holds(t, "<tool_call>") ? NET_CALLS_BLOCKS : NET_CALLS_ANY;
}

/* Is the mark a text in answers, of so many tokens at most?  Some tokenizers have it as a special
 * token that is never decoded.  Found by a round trip: the mark is tokenized and the ids are turned
 * into text again, as those of an answer are. */
static mpk_status is_text(net_exchange *x, const mpk_tokenizer *tokenizer, str mark, size_t most,
                          bool *same)
{
    int32_t *ids;
    char *bytes = NULL;
    size_t n, n_bytes = 0;
    TRY(mpk_tokenize(x->cx, tokenizer, mark.at, mark.n, false, &ids, &n));
    mpk_status status = mpk_detokenize(x->cx, tokenizer, ids, n, &bytes, &n_bytes);
    *same = n <= most && n_bytes >= mark.n && memmem(bytes, n_bytes, mark.at, mark.n);
    mpk_free(bytes);
    mpk_free(ids);
    return status;
}

/* The text that opens the calls of a style must be a text in answers, too: a form cannot ask for
 * a token that has none. */
static mpk_status check_mark(net_exchange *x, str mark)
{
    bool same = true;
    if (mark.n)
        TRY(is_text(x, mpk_engine_tokenizer(x->server->engine), mark, mark.n, &same));
    return same ? MPK_OK
                : refuse(
                      x,
                      "the tokens with which this model begins them have no text in its tokenizer");
}

/* told: the tools are told in words by net_tools.c, which asks for NET_CALLS_BLOCKS.  400: no
 * known style. */
static mpk_status find_style(net_exchange *x, const net_request *q, bool told,
                             net_call_style *style)
{
    text t = {0};
    mpk_status status = told ? MPK_OK : render_probe(x, q, &t);
    *style = told ? NET_CALLS_BLOCKS : style_of(&t);
    text_free(&t);
    TRY(status);
    if (*style == NET_CALLS_ANY)
        return refuse(
            x, "the chat template writes them in none of the forms that are known (those of Qwen, "
               "Qwen3-Coder and Hermes, Llama 3, Mistral, DeepSeek, gpt-oss and Seed-OSS)");
    return check_mark(x, opening(&spellings[*style]));
}

/* ---- the form ---- */

static void write_words(const char *words, text *to)
{
    json_write_str(to, str_from(words));
}

/* A tool with "strict": true: its calls follow its schema. */
static bool is_strict(const json_value *tool)
{
    const json_value *strict = json_get(json_get(tool, "function"), "strict");
    return json_is(strict, JSON_KIND_BOOL) && strict->boolean;
}

/* A JSON schema as a format.  Arguments are an object even if the schema does not say so:
 * "type":"object" is added. */
static void write_schema(const json_value *schema, text *to)
{
    const bool is_object = json_is(schema, JSON_KIND_OBJECT);
    text_print(to, "{\"type\":\"json_schema\",\"json_schema\":");
    if (is_object && json_get(schema, "type"))
        json_write(to, schema, 0);
    else
        text_print(to, "{\"type\":\"object\"");
    for (size_t i = 0; is_object && !json_get(schema, "type") && i < schema->n; i++) {
        text_print(to, ",");
        json_write_str(to, schema->items[i].key);
        text_print(to, ":");
        json_write(to, &schema->items[i], 0);
    }
    text_print(to, is_object && json_get(schema, "type") ? "}" : "}}");
}

/* The tag of a call of one tool; exact: its arguments follow the tool's schema, otherwise they are
 * any object. The name is quoted where the style's calls are JSON, so that a quotation mark in it
 * does not end it. */
static void write_call(const spelling *s, const json_value *tool, bool exact, text *to)
{
    const json_value *f = json_get(tool, "function");
    const str name = json_get(f, "name")->text;
    text begin = {0};
    text_print(&begin, "%s", s->before);
    if (s->quotes)
        json_write_str(&begin, name);
    else
        text_add(&begin, name.at, name.n);
    text_print(&begin, "%s", s->after);
    text_print(to, "{\"type\":\"tag\",\"begin\":");
    json_write_str(to, (str){begin.at, begin.n});
    to->failed |= begin.failed;
    text_free(&begin);
    text_print(to, ",\"content\":");
    if (!s->tagged)
        write_schema(exact ? json_get(f, "parameters") : NULL, to);
    else if (exact)
        net_tagged_write(json_get(f, "parameters"), s->lines, to);
    else
        text_print(to, "{\"type\":\"any_text\"}");
    text_print(to, ",\"end\":");
    write_words(s->end, to);
    text_print(to, "}");
}

/* May this tool be called, and do its arguments follow its schema? */
static bool may_call(const net_request *q, const json_value *tool)
{
    return !q->only_tool || tool == q->only_tool;
}

static bool is_exact(const net_request *q, const json_value *tool)
{
    return q->must_call || is_strict(tool);
}

/* A list of tags, one for each tool that may be called. */
static void write_tags(const net_request *q, const spelling *s, text *to)
{
    bool any = false;
    text_print(to, "[");
    for (size_t i = 0; i < q->tool_list->n; i++) {
        const json_value *tool = &q->tool_list->items[i];
        if (!may_call(q, tool))
            continue;
        text_print(to, any ? "," : "");
        write_call(s, tool, is_exact(q, tool), to);
        any = true;
    }
    text_print(to, "]");
}

/* A tag for all calls of an answer, with what opens and closes them. */
static void write_calls(const net_request *q, const spelling *s, text *to)
{
    const bool one = s->alone || q->one_call || q->only_tool;
    text_print(to, "{\"type\":\"tag\",\"begin\":");
    write_words(s->open, to);
    text_print(to,
               ",\"content\":{\"type\":\"tags_with_separator\",\"at_least_one\":true,\"stop_after_"
               "first\":%s,"
               "\"separator\":",
               one ? "true" : "false");
    write_words(s->between, to);
    text_print(to, ",\"tags\":");
    write_tags(q, s, to);
    text_print(to, "},\"end\":");
    write_words(s->close, to);
    text_print(to, "}");
}

/* Free text that may contain calls: from the trigger on, the answer must be a call. */
static void write_text_with_calls(const net_request *q, const spelling *s, text *to)
{
    const bool opens = *s->open != 0;
    text_print(to, "{\"type\":\"triggered_tags\",\"stop_after_first\":%s,\"triggers\":[",
               opens || q->one_call ? "true" : "false");
    json_write_str(to, opening(s));
    text_print(to, "],\"tags\":");
    if (opens) {
        text_print(to, "[");
        write_calls(q, s, to);
        text_print(to, "]");
    } else {
        write_tags(q, s, to);
    }
    text_print(to, "}");
}

/* The format of an answer for which the request asks a form besides tools. */
static void write_form(const mpk_request_options *o, text *to)
{
    static const char *const names[][2] = {[MPK_FORM_JSON_SCHEMA] = {"json_schema", "json_schema"},
                                           [MPK_FORM_JSON_OBJECT] = {"json_schema", "json_schema"},
                                           [MPK_FORM_REGEX] = {"regex", "pattern"},
                                           [MPK_FORM_CHOICE] = {"choice", "choices"},
                                           [MPK_FORM_GRAMMAR] = {"grammar", "grammar"}};
    text_print(to, "{\"type\":\"%s\",\"%s\":", names[o->form][0], names[o->form][1]);
    if (o->form == MPK_FORM_JSON_OBJECT)
        text_print(to, "{\"type\":\"object\"}");
    else if (o->form == MPK_FORM_JSON_SCHEMA || o->form == MPK_FORM_CHOICE)
        text_print(to, "%s", o->form_source);
    else
        write_words(o->form_source, to);
    text_print(to, "}");
}

/* An answer without calls, of the form that was asked for: in channels it has a header. */
static void write_final(const mpk_request_options *o, bool channels, text *to)
{
    if (channels)
        text_print(to, "{\"type\":\"sequence\",\"elements\":[{\"type\":\"const_string\",\"value\":"
                       "\"<|channel|>final<|message|>\"},");
    if (o->form)
        write_form(o, to);
    else
        text_print(to, "{\"type\":\"any_text\"}");
    text_print(to, channels ? "]}" : "");
}

/* Calls, or an answer without them: of the form that was asked for, or any text that does not
 * look like a call. */
static void write_calls_or_text(const net_request *q, net_call_style style, text *to)
{
    const spelling *s = &spellings[style];
    const bool channels = style == NET_CALLS_CHANNEL;
    if (!q->sampling.form && style != NET_CALLS_OBJECT && !channels) {
        write_text_with_calls(q, s, to);
        return;
    }
    text_print(to, "{\"type\":\"or\",\"elements\":[");
    write_calls(q, s, to);
    text_print(to, ",");
    if (q->sampling.form || channels)
        write_final(&q->sampling, channels, to);
    else
        text_print(to, "{\"type\":\"regex\",\"pattern\":\"\\\\s*([^\\\\s{\\\\[][\\\\s\\\\S]*)?\"}");
    text_print(to, "]}");
}

/* ---- whether a form is needed, and which ---- */

/* 400: arguments in tags, and a schema that cannot be divided among them. */
static mpk_status check_tagged(net_exchange *x, const net_request *q, const spelling *s)
{
    for (size_t i = 0; s->tagged && i < q->tool_list->n; i++) {
        const json_value *tool = &q->tool_list->items[i];
        const json_value *parameters = json_get(json_get(tool, "function"), "parameters");
        if (may_call(q, tool) && is_exact(q, tool) && !net_tagged_can_hold(parameters))
            return refuse(x, "this model writes each argument by itself, so the schema of a tool's "
                             "parameters can only have properties and say which are required");
    }
    return MPK_OK;
}

/* "strict" of a tool asks that its arguments follow the schema, though no call has to come. */
static bool any_strict(const net_request *q)
{
    for (size_t i = 0; q->tool_list && i < q->tool_list->n; i++)
        if (is_strict(&q->tool_list->items[i]))
            return true;
    return false;
}

/* How an answer reasons: not at all (marks NULL), from its beginning on, or if it wants to. */
typedef struct reasoning {
    const struct net_thought *marks;
    bool begun, channels;
} reasoning;

/* Reasoning of an answer in channels; the next message's header follows. */
static const struct net_thought analysis = {{"<|channel|>analysis<|message|>", 30}, {"<|end|>", 7}};

/* Begun: the prompt ends with <think>.  If it wants to: the mark is a token of the model, and the
 * prompt does not say that the reasoning is over, as templates do that are asked for none. */
static mpk_status find_reasoning(net_exchange *x, str prompt, reasoning *out)
{
    const mpk_tokenizer *tokenizer = mpk_engine_tokenizer(x->server->engine);
    bool same;
    *out = (reasoning){.marks = net_thought_at_end(prompt, false)};
    out->begun = out->marks != NULL;
    if (out->begun || net_thought_at_end(prompt, true) || !tokenizer)
        return MPK_OK;
    if (str_ends(prompt, STR("<|start|>assistant"))) {
        TRY(is_text(x, tokenizer, STR("<|channel|>"), 1, &out->channels));
        out->marks = out->channels ? &analysis : NULL;
    }
    for (size_t i = 0; i < NET_THOUGHTS && !out->marks; i++) {
        TRY(is_text(x, tokenizer, net_thoughts[i].open, 1, &same));
        if (same)
            out->marks = &net_thoughts[i];
    }
    return MPK_OK;
}

/* Reasoning as a format, and the line breaks after it, or the beginning of the next message. */
static void write_reasoning(const reasoning *r, text *to)
{
    text_print(to, "{\"type\":\"sequence\",\"elements\":[{\"type\":\"tag\",\"begin\":");
    json_write_str(to, r->begun ? STR("") : r->marks->open);
    text_print(to, ",\"content\":{\"type\":\"any_text\"},\"end\":");
    json_write_str(to, r->marks->close);
    text_print(to, r->channels ? "},{\"type\":\"const_string\",\"value\":\"<|start|>assistant\"}]}"
                               : "},{\"type\":\"regex\",\"pattern\":\"\\n{0,2}\"}]}");
}

/* Wrap the format as a structural tag.  Where the answer reasons first, the form begins after it.
 * The source is copied to the exchange's arena. */
static mpk_status set_form(net_exchange *x, net_request *q, const reasoning *r, const text *format)
{
    const bool may = r->marks && !r->begun;
    text t = {0};
    text_print(&t, "{\"type\":\"structural_tag\",\"format\":");
    if (r->marks)
        text_print(&t, "{\"type\":\"sequence\",\"elements\":[");
    if (may)
        text_print(&t,
                   "{\"type\":\"or\",\"elements\":[{\"type\":\"const_string\",\"value\":\"\"},");
    if (r->marks)
        write_reasoning(r, &t);
    text_print(&t, "%s%s", may ? "]}" : "", r->marks ? "," : "");
    text_add(&t, format->at, format->n);
    text_print(&t, r->marks ? "]}}" : "}");
    q->sampling.form_source = t.failed || format->failed ? NULL : arena_copy(&x->arena, t.at, t.n);
    q->sampling.form = MPK_FORM_STRUCTURAL_TAG;
    text_free(&t);
    CHECK(x->cx, q->sampling.form_source, MPK_ENOMEM, "out of memory for the form of an answer");
    return MPK_OK;
}

/* For models whose calls begin with a token that has no text: the prompt begins the calls, so
 * only a call that must come can be held. */
static mpk_status begin_list(net_exchange *x, const net_request *q, text *prompt)
{
    if (!q->must_call)
        return refuse(x, "this model begins them with a token that has no text: give "
                         "\"tool_choice\" \"required\" or a "
                         "function, or tools without \"strict\"");
    text_print(prompt, "[TOOL_CALLS]");
    CHECK(x->cx, !prompt->failed, MPK_ENOMEM, "out of memory for a prompt");
    return MPK_OK;
}

/* See net_calls.h.  A form of the request is rewritten too if the answer reasons first, since it
 * applies only after the reasoning. */
mpk_status net_calls_hold(net_exchange *x, net_request *q, bool told, text *prompt,
                          net_call_style *style)
{
    const bool held = q->must_call || any_strict(q);
    const bool formed = q->sampling.form && q->sampling.form != MPK_FORM_STRUCTURAL_TAG;
    text format = {0};
    reasoning reasons = {0};
    *style = NET_CALLS_ANY;
    if (held || formed)
        TRY(find_reasoning(x, text_str(prompt), &reasons));
    if (!held && !reasons.marks)
        return MPK_OK;
    if (held && !q->must_call && q->sampling.form && !formed)
        return refuse(
            x, "the request brings a structural tag of its own: leave \"strict\" out of its tools");
    if (held)
        TRY(find_style(x, q, told, style));
    if (held)
        TRY(check_tagged(x, q, &spellings[*style]));
    if (*style == NET_CALLS_LIST)
        TRY(begin_list(x, q, prompt));
    if (!held)
        write_final(&q->sampling, reasons.channels, &format);
    else if (q->must_call)
        write_calls(q, &spellings[*style], &format);
    else
        write_calls_or_text(q, *style, &format);
    if (held)
        q->form_name = q->must_call || !formed ? "tools" : NULL;
    mpk_status status = set_form(x, q, &reasons, &format);
    text_free(&format);
    return status;
}
