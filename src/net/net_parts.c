/* net_parts.c - the text of a chat's answer, as it arrives -> reasoning, content, and calls of
 * tools.
 *
 *   START -> REASONING -> OPEN -> CONTENT | CALL | BARE,  CALL -> OPEN,  CONTENT -> CALL
 *   START -> HEADER -> MESSAGE -> HEADER
 *
 * A state machine over `pending`, the text that is not yet decided: each step takes as much of
 * it as the state allows and says whether another step may take more.  Invariant: what a step
 * leaves pending could still become the beginning of a mark, or lies within one; so the parts do
 * not depend on how the text was cut into pieces.
 *
 *   "<think>a</think>b<tool_call>{..}</tool_call>"  ->  reasoning "a", content "b", one call
 *   "<|channel|>analysis<|message|>a<|end|><|start|>assistant<|channel|>final<|message|>b"
 *                                                    ->  reasoning "a", content "b"
 *
 * Relies on base/json.h for the calls' arguments; called by net_work.c.
 */
#include "net/net_parts.h"
#include "net/net_random.h"
#include "net/net_tagged.h"

#define MARK(words)             \
    {                           \
        words, sizeof words - 1 \
    }

const struct net_thought net_thoughts[NET_THOUGHTS] = {
    {MARK("<think>"), MARK("</think>")},
    {MARK("[THINK]"), MARK("[/THINK]")},
    {MARK("<seed:think>"), MARK("</seed:think>")},
};

/* The pairs of marks that enclose calls.  A call of MARK_ARGS ends with the answer, or where the
 * next one begins. */
enum { MARK_BLOCK, MARK_SEED, MARK_CALLS, MARK_ARGS, MARKS };
static const struct {
    str open, close;
} marks[MARKS] = {{MARK("<tool_call>"), MARK("</tool_call>")},
                  {MARK("<seed:tool_call>"), MARK("</seed:tool_call>")},
                  {MARK(NET_CALLS_BEGIN), MARK(NET_CALLS_END)},
                  {MARK("[TOOL_CALLS]"), MARK("[TOOL_CALLS]")}};

/* Marks of channels.  Those from MARK_END on end a message; all but MARK_END belong to the header
 * that follows. */
static const str mark_message = MARK("<|message|>");
enum { CHANNEL_END, CHANNEL_START, CHANNEL_NAME, CHANNEL_MARKS };
static const str channel_marks[CHANNEL_MARKS] = {MARK("<|end|>"), MARK("<|start|>"),
                                                 MARK("<|channel|>")};
/* A header is a line at most: longer text without <|message|> is content. */
enum { MOST_HEADER = 1024 };

/* The number of bytes of white space at the beginning. */
static size_t skip_space(str s)
{
    size_t i = 0;
    while (i < s.n && memchr(" \t\r\n", s.at[i], 4))
        i++;
    return i;
}

static str trim_end(str s)
{
    while (s.n && memchr(" \t\r\n", s.at[s.n - 1], 4))
        s.n--;
    return s;
}

/* Could s become a text that begins with the mark, if more comes? */
static bool may_begin(str s, str mark)
{
    return s.n < mark.n && memcmp(s.at, mark.at, s.n) == 0;
}

/* How many bytes at the end of s are a beginning of the mark, and so undecided. */
static size_t count_unsure(str s, str mark)
{
    for (size_t n = mark.n - 1 < s.n ? mark.n - 1 : s.n; n > 0; n--)
        if (memcmp(s.at + s.n - n, mark.at, n) == 0)
            return n;
    return 0;
}

static str pending(const net_parts *p)
{
    return text_str(&p->pending);
}

/* Remove n bytes from the beginning of the pending text. */
static void drop(net_parts *p, size_t n)
{
    if (n)
        memmove(p->pending.at, p->pending.at + n, p->pending.n - n + 1);
    p->pending.n -= n;
}

static void add_content(net_parts *p, str s)
{
    text_add(&p->content, s.at, s.n);
    p->any_content |= s.n > 0;
}

/* Hidden reasoning is dropped here, so that no reply can show it by mistake. */
static void add_reasoning(net_parts *p, str s)
{
    if (p->hide_reasoning)
        return;
    text_add(&p->reasoning, s.at, s.n);
    p->any_reasoning |= s.n > 0;
}

/* Are calls between these marks looked for?  Only if there are tools, and only in the model's
 * own style if that is known. */
static bool seeks(const net_parts *p, unsigned mark)
{
    if (!p->tools || p->style == NET_CALLS_ANY)
        return p->tools != NULL;
    if (mark == MARK_BLOCK)
        return p->style == NET_CALLS_BLOCKS || p->style == NET_CALLS_TAGGED;
    if (mark == MARK_SEED)
        return p->style == NET_CALLS_SEED;
    if (mark == MARK_ARGS)
        return p->style == NET_CALLS_ARGS;
    return p->style == NET_CALLS_FENCED || p->style == NET_CALLS_MARKED;
}

/* Can an answer that is JSON as a whole be a call? */
static bool seeks_bare(const net_parts *p)
{
    return p->style == NET_CALLS_ANY || p->style == NET_CALLS_OBJECT || p->style == NET_CALLS_LIST;
}

/* ---- calls ---- */

/* Is there a tool of this name? */
static bool is_tool(const json_value *tools, str name)
{
    for (size_t i = 0; i < tools->n; i++) {
        const json_value *known = json_get(json_get(&tools->items[i], "function"), "name");
        if (known && str_equal(known->text, name))
            return true;
    }
    return false;
}

/* Add a call, copied to the arena; a second one is ignored if parallel calls are off.
 * MPK_ENOMEM. */
static mpk_status add_call(mpk_context *cx, net_parts *p, str name, str arguments)
{
    if (p->one_call && p->calls.n)
        return MPK_OK;
    net_call call = {
        .name = {arena_copy(&p->arena, name.at, name.n), name.n},
        .arguments = {arena_copy(&p->arena, arguments.n ? arguments.at : "", arguments.n),
                      arguments.n}};
    CHECK(cx, call.name.at && call.arguments.at, MPK_ENOMEM, "out of memory for a call of a tool");
    TRY(net_random_id(cx, "call_", call.id, sizeof call.id));
    PUSH(cx, &p->arena, &p->calls, call);
    return MPK_OK;
}

/* Add the call {"name": .., "arguments" or "parameters": ..}; *found false: it is not such an
 * object. Arguments given as a text are taken as they are, as some models write them: {"name":
 * "add", "arguments": "{\"a\": 1}"}. */
static mpk_status take_object(mpk_context *cx, net_parts *p, const json_value *v, bool *found)
{
    const json_value *name = json_get(v, "name"), *arguments = json_get(v, "arguments");
    *found = false;
    if (!arguments)
        arguments = json_get(v, "parameters");
    if (!json_is(name, JSON_KIND_STRING) || !name->text.n)
        return MPK_OK;
    text t = {0};
    if (!arguments)
        text_print(&t, "{}");
    else if (arguments->kind == JSON_KIND_STRING)
        text_add(&t, arguments->text.at, arguments->text.n);
    else
        json_write(&t, arguments, 0);
    mpk_status status = t.failed ? status_fail(cx, MPK_ENOMEM, "out of memory for a call of a tool")
                                 : add_call(cx, p, name->text, (str){t.at, t.n});
    text_free(&t);
    *found = true;
    return status;
}

/* Parse JSON that the model wrote; *out is NULL if it is not valid. */
static mpk_status parse(mpk_context *cx, net_parts *p, str source, const json_value **out)
{
    /* values are slices of the copy; `pending` moves */
    char *copy = arena_copy(&p->arena, source.at, source.n);
    CHECK(cx, copy, MPK_ENOMEM, "out of memory for a call of a tool");
    *out = NULL;
    mpk_status status = json_parse_any_number(cx, &p->arena, (str){copy, source.n}, out);
    return status == MPK_ENOMEM ? status : MPK_OK;
}

/* Split s at the first mark: the text before it, and *s after it.  False: there is no mark. */
static bool cut(str *s, const char *mark, str *before)
{
    const size_t n = strlen(mark);
    const char *at = s->n >= n ? memmem(s->at, s->n, mark, n) : NULL;
    if (!at)
        return false;
    *before = (str){s->at, (size_t)(at - s->at)};
    *s = (str){at + n, s->n - before->n - n};
    return true;
}

/* Calls in DeepSeek's style: BEGIN name SEP arguments END, or BEGIN "function" SEP name, a line
 * ```json, arguments, a line ```, END. */
static mpk_status take_marked(mpk_context *cx, net_parts *p, str rest, bool *found)
{
    str before, name, call, arguments;
    while (cut(&rest, NET_CALL_BEGIN, &before) && cut(&rest, NET_CALL_SEP, &name) &&
           cut(&rest, NET_CALL_END, &call)) {
        if (cut(&call, "\n```json\n", &before)) {
            name = before;
            arguments = cut(&call, "\n```", &before) ? before : call;
        } else {
            arguments = call;
        }
        if (!name.n)
            continue;
        TRY(add_call(cx, p, name, arguments));
        *found = true;
    }
    return MPK_OK;
}

/* Calls whose arguments stand in tags, one after the other. */
static mpk_status take_tagged(mpk_context *cx, net_parts *p, str rest, bool *found)
{
    bool more = true;
    while (more) {
        text arguments = {0};
        str name;
        mpk_status status =
            net_tagged_read(cx, &p->arena, p->tools, &rest, &name, &arguments, &more);
        if (status == MPK_OK && arguments.failed)
            status = status_fail(cx, MPK_ENOMEM, "out of memory for a call of a tool");
        if (status == MPK_OK && more)
            status = add_call(cx, p, name, text_str(&arguments));
        text_free(&arguments);
        TRY(status);
        *found |= more;
    }
    return MPK_OK;
}

/* A call in the style name [ARGS] arguments, maybe with [CALL_ID] and an id after the name. */
static mpk_status take_args(mpk_context *cx, net_parts *p, str rest, bool *found)
{
    str name, id;
    if (!cut(&rest, "[ARGS]", &name))
        return MPK_OK;
    if (cut(&name, "[CALL_ID]", &id))
        name = id;
    name = trim_end((str){name.at + skip_space(name), name.n - skip_space(name)});
    rest = trim_end((str){rest.at + skip_space(rest), rest.n - skip_space(rest)});
    *found = name.n > 0;
    if (!rest.n)
        rest = STR("{}");
    return *found ? add_call(cx, p, name, rest) : MPK_OK;
}

/* The text between two marks: its calls, or if it holds none, content together with its marks.
 * end: the closing mark, or "" if the answer ended without it. */
static mpk_status take_block(mpk_context *cx, net_parts *p, str block, str end)
{
    const json_value *v;
    bool found = false;
    if (p->mark == MARK_CALLS)
        TRY(take_marked(cx, p, block, &found));
    else if (p->mark == MARK_ARGS)
        TRY(take_args(cx, p, block, &found));
    else if (net_tagged_begins(block))
        TRY(take_tagged(cx, p, block, &found));
    else {
        TRY(parse(cx, p, block, &v));
        TRY(take_object(cx, p, v, &found));
    }
    if (!found) {
        add_content(p, marks[p->mark].open);
        add_content(p, block);
        add_content(p, end);
    }
    return MPK_OK;
}

/* Are all n values calls of tools that were given?  So an answer that is JSON is not mistaken
 * for a call. */
static bool all_calls(const json_value *tools, const json_value *v, size_t n)
{
    bool good = n > 0;
    for (size_t i = 0; i < n; i++) {
        const json_value *name = json_get(&v[i], "name");
        good &= json_is(name, JSON_KIND_STRING) && is_tool(tools, name->text) &&
                (json_get(&v[i], "arguments") || json_get(&v[i], "parameters"));
    }
    return good;
}

/* The end of an answer that began as JSON: calls if all of it is, otherwise content. A model
 * without marks for calls answers with one object or a list of them. Only names of tools that the
 * request offered make calls of it; any other JSON is what the user asked for. */
static mpk_status take_bare(mpk_context *cx, net_parts *p)
{
    const json_value *v;
    TRY(parse(cx, p, pending(p), &v));
    const json_value *items = v;
    size_t n = v ? 1 : 0;
    bool found;
    if (json_is(v, JSON_KIND_LIST)) {
        items = v->items;
        n = v->n;
    }
    if (!all_calls(p->tools, items, n))
        add_content(p, pending(p));
    else
        for (size_t i = 0; i < n; i++)
            TRY(take_object(cx, p, &items[i], &found));
    drop(p, p->pending.n);
    return MPK_OK;
}

/* Enter the state CALL; the opening mark has been dropped. */
static void begin_call(net_parts *p, unsigned mark)
{
    p->state = NET_PARTS_CALL;
    p->mark = mark;
    p->n_seen = 0;
    p->in_string = false;
}

/* ---- steps: true if another one may take more ---- */

/* Wait for the first visible text: reasoning begins if it is <think> or the like. */
static bool step_start(net_parts *p)
{
    str s = pending(p), rest = {s.at + skip_space(s), s.n - skip_space(s)};
    if (!rest.n)
        return false;
    for (size_t i = 0; i < NET_THOUGHTS; i++)
        if (may_begin(rest, net_thoughts[i].open))
            return false;
    for (int i = CHANNEL_START; i < CHANNEL_MARKS; i++) {
        if (may_begin(rest, channel_marks[i]))
            return false;
        if (str_begins(rest, channel_marks[i])) {
            p->state = NET_PARTS_HEADER;
            return true;
        }
    }
    p->state = NET_PARTS_OPEN;
    for (size_t i = 0; i < NET_THOUGHTS; i++)
        if (str_begins(rest, net_thoughts[i].open)) {
            drop(p, s.n - rest.n + net_thoughts[i].open.n);
            p->state = NET_PARTS_REASONING;
            p->thought = &net_thoughts[i];
            break;
        }
    return true;
}

/* Reasoning up to its closing mark.  White space at its end stays pending, because it is dropped
 * before the mark. */
static bool step_reasoning(net_parts *p)
{
    const str unthink = p->thought->close;
    if (!p->any_reasoning)
        drop(p, skip_space(pending(p)));
    str s = pending(p);
    const char *end = s.n ? memmem(s.at, s.n, unthink.at, unthink.n) : NULL;
    str sure = trim_end((str){s.at, end ? (size_t)(end - s.at) : s.n - count_unsure(s, unthink)});
    add_reasoning(p, sure);
    if (end) {
        drop(p, (size_t)(end - s.at) + unthink.n);
        p->state = NET_PARTS_OPEN;
        p->drop_space = true;
        return true;
    }
    drop(p, sure.n);
    return false;
}

/* A place where content or a call may begin.  White space before a call is dropped; before content
 * it belongs to the content, unless reasoning or a call came before. False: more bytes are needed
 * to decide, for example after "<tool" where "<tool_call>" may come. */
static bool step_open(net_parts *p)
{
    str s = pending(p), rest = {s.at + skip_space(s), s.n - skip_space(s)};
    if (!rest.n) /* reasoning or a call came before it */
        return false;
    for (unsigned i = 0; i < MARKS; i++) {
        if (seeks(p, i) && may_begin(rest, marks[i].open))
            return false;
        if (seeks(p, i) && str_begins(rest, marks[i].open)) {
            drop(p, s.n - rest.n + marks[i].open.n);
            begin_call(p, i);
            return true;
        }
    }
    p->state = NET_PARTS_CONTENT;
    if (p->tools && seeks_bare(p) && !p->any_content && !p->calls.n &&
        (*rest.at == '{' || *rest.at == '['))
        p->state = NET_PARTS_BARE;
    else if (p->drop_space)
        drop(p, s.n - rest.n);
    return true;
}

/* Content up to the first mark, or up to text that may become one. Example with the mark
 * "<tool_call>": of "see <to" the content "see " is given out and "<to" kept back, since it may
 * become the mark; when "p>" follows, all of it is content. */
static bool step_content(net_parts *p)
{
    str s = pending(p);
    size_t first = s.n, unsure = 0;
    unsigned found = MARKS;
    for (unsigned i = 0; i < MARKS && s.n; i++) {
        const char *at = seeks(p, i) ? memmem(s.at, s.n, marks[i].open.at, marks[i].open.n) : NULL;
        const size_t may_be = seeks(p, i) ? count_unsure(s, marks[i].open) : 0;
        if (at && (size_t)(at - s.at) < first) {
            first = (size_t)(at - s.at);
            found = i;
        }
        unsure = may_be > unsure ? may_be : unsure;
    }
    const bool any = found < MARKS;
    const size_t n = any ? first : s.n - unsure;
    add_content(p, (str){s.at, n});
    drop(p, n + (any ? marks[found].open.n : 0));
    if (any)
        begin_call(p, found);
    return any;
}

/* The closing mark of a call; NULL: it has not come.  Within a string of arguments in JSON it does
 * not count.  Each search goes on where the last one ended, so a long call costs its length,
 * however many pieces it comes in. */
static const char *find_close(net_parts *p, str s)
{
    const str close = marks[p->mark].close;
    const bool quotes = p->mark != MARK_CALLS && skip_space(s) < s.n && s.at[skip_space(s)] != '<';
    for (; p->n_seen + close.n <= s.n; p->n_seen++) {
        const char *at = s.at + p->n_seen;
        if (!p->in_string && memcmp(at, close.at, close.n) == 0)
            return at;
        if (p->in_string && *at == '\\')
            p->n_seen++; /* the next character is escaped */
        else
            p->in_string ^= quotes && *at == '"';
    }
    return NULL;
}

/* Does the header hold the words?  In *after what follows them. */
static bool header_has(str header, const char *words, str *after)
{
    const size_t n = strlen(words);
    const char *at = header.n >= n ? memmem(header.at, header.n, words, n) : NULL;
    if (at)
        *after = (str){at + n, (size_t)(header.at + header.n - at) - n};
    return at != NULL;
}

/* The kind of message that the header announces, such as "<|start|>assistant<|channel|>commentary
 * to=functions.add <|constrain|>json".  Messages to tools are calls if there are tools. */
static mpk_status read_header(mpk_context *cx, net_parts *p, str header)
{
    str rest;
    size_t n = 0;
    p->kind = NET_MESSAGE_CONTENT;
    if (p->tools && header_has(header, "to=functions.", &rest)) {
        while (n < rest.n && !memchr(" \t\r\n<", rest.at[n], 5))
            n++;
        p->called = (str){arena_copy(&p->arena, rest.at, n), n};
        CHECK(cx, p->called.at, MPK_ENOMEM, "out of memory for a call of a tool");
        p->kind = n ? NET_MESSAGE_CALL : NET_MESSAGE_CONTENT;
    } else if (header_has(header, "<|channel|>analysis", &rest)) {
        p->kind = NET_MESSAGE_REASONING;
    }
    return MPK_OK;
}

/* Up to <|message|>, which is dropped with the header. */
static mpk_status step_header(mpk_context *cx, net_parts *p, bool *more)
{
    str s = pending(p);
    const char *end = s.n ? memmem(s.at, s.n, mark_message.at, mark_message.n) : NULL;
    *more = end || s.n > MOST_HEADER;
    if (!end) {
        if (*more)
            p->state = NET_PARTS_CONTENT;
        return MPK_OK;
    }
    TRY(read_header(cx, p, (str){s.at, (size_t)(end - s.at)}));
    drop(p, (size_t)(end - s.at) + mark_message.n);
    p->state = NET_PARTS_MESSAGE;
    p->n_seen = 0;
    return MPK_OK;
}

/* A piece of a message; a call's text comes whole. */
static mpk_status take_message(mpk_context *cx, net_parts *p, str s)
{
    if (p->kind == NET_MESSAGE_CALL)
        return add_call(cx, p, p->called, trim_end(s).n ? trim_end(s) : STR("{}"));
    if (p->kind == NET_MESSAGE_REASONING)
        add_reasoning(p, s);
    else
        add_content(p, s);
    return MPK_OK;
}

/* A message up to the first mark that ends it, or up to text that may become one. */
static mpk_status step_message(mpk_context *cx, net_parts *p, bool *more)
{
    str s = pending(p), fresh = {s.at + p->n_seen, s.n - p->n_seen};
    size_t first = s.n, unsure = 0;
    int found = CHANNEL_MARKS;
    for (int i = 0; i < CHANNEL_MARKS && fresh.n; i++) {
        const str mark = channel_marks[i];
        const char *at = memmem(fresh.at, fresh.n, mark.at, mark.n);
        const size_t may_be = count_unsure(fresh, mark);
        if (at && (size_t)(at - s.at) < first) {
            first = (size_t)(at - s.at);
            found = i;
        }
        unsure = may_be > unsure ? may_be : unsure;
    }
    *more = found < CHANNEL_MARKS;
    const size_t n = *more ? first : s.n - unsure;
    if (!*more && p->kind == NET_MESSAGE_CALL) {
        p->n_seen = n;
        return MPK_OK;
    }
    TRY(take_message(cx, p, (str){s.at, n}));
    drop(p, n + (found == CHANNEL_END ? channel_marks[CHANNEL_END].n : 0));
    p->state = *more ? NET_PARTS_HEADER : NET_PARTS_MESSAGE;
    return MPK_OK;
}

/* Nothing is taken until the closing mark has come. */
static mpk_status step_call(mpk_context *cx, net_parts *p, bool *more)
{
    str s = pending(p);
    const char *end = find_close(p, s);
    *more = end != NULL;
    if (!end)
        return MPK_OK;
    str block = {s.at, (size_t)(end - s.at)};
    const bool again = p->mark == MARK_ARGS; /* the close is the next call's open */
    TRY(take_block(cx, p, block, again ? (str){0} : marks[p->mark].close));
    drop(p, block.n + marks[p->mark].close.n);
    p->drop_space = true;
    if (again)
        begin_call(p, MARK_ARGS);
    else
        p->state = NET_PARTS_OPEN;
    return MPK_OK;
}

/* One step of the automaton; *more: the state has changed and what is pending must be looked at
 * again. A bare JSON answer waits for its end (take_bare). */
static mpk_status step(mpk_context *cx, net_parts *p, bool *more)
{
    switch (p->state) {
    case NET_PARTS_START:
        *more = step_start(p);
        break;
    case NET_PARTS_REASONING:
        *more = step_reasoning(p);
        break;
    case NET_PARTS_OPEN:
        *more = step_open(p);
        break;
    case NET_PARTS_CONTENT:
        *more = step_content(p);
        break;
    case NET_PARTS_CALL:
        return step_call(cx, p, more);
    case NET_PARTS_HEADER:
        return step_header(cx, p, more);
    case NET_PARTS_MESSAGE:
        return step_message(cx, p, more);
    case NET_PARTS_BARE:
        *more = false;
        break;
    }
    return MPK_OK;
}

static mpk_status check_texts(mpk_context *cx, const net_parts *p)
{
    CHECK(cx, !p->pending.failed && !p->content.failed && !p->reasoning.failed, MPK_ENOMEM,
          "out of memory for the text of an answer");
    return MPK_OK;
}

/* ---- interface ---- */

const struct net_thought *net_thought_at_end(str words, bool closed)
{
    words = trim_end(words);
    for (size_t i = 0; i < NET_THOUGHTS; i++)
        if (str_ends(words, closed ? net_thoughts[i].close : net_thoughts[i].open))
            return &net_thoughts[i];
    return NULL;
}

/* A prompt that ends in "<think>" (the template opens the reasoning) begins the answer within it:
 * the mark itself will not be in the text. */
void net_parts_open(net_parts *p, const json_value *tools, str prompt)
{
    p->tools = tools;
    p->thought = net_thought_at_end(prompt, false);
    if (p->thought)
        p->state = NET_PARTS_REASONING;
}

/* piece: any bytes, cut anywhere; everything that is undecided stays in p->pending. */
mpk_status net_parts_put(mpk_context *cx, net_parts *p, str piece)
{
    bool more = piece.n > 0;
    text_add(&p->pending, piece.at, piece.n);
    TRY(check_texts(cx, p));
    while (more)
        TRY(step(cx, p, &more));
    return check_texts(cx, p);
}

/* What is pending at the end is decided as it stands: an unfinished call is content if it does
 * not parse, the message of a channel is what its header said, and a header without its message is
 * dropped. */
mpk_status net_parts_end(mpk_context *cx, net_parts *p)
{
    str rest = pending(p);
    if (p->state == NET_PARTS_BARE)
        TRY(take_bare(cx, p));
    else if (p->state == NET_PARTS_CALL)
        TRY(take_block(cx, p, rest, (str){0}));
    else if (p->state == NET_PARTS_MESSAGE)
        TRY(take_message(cx, p, rest));
    else if (p->state == NET_PARTS_REASONING)
        add_reasoning(p, trim_end(rest));
    else if (p->state != NET_PARTS_HEADER && (!p->drop_space || skip_space(rest) < rest.n))
        add_content(p, rest);
    drop(p, p->pending.n);
    return check_texts(cx, p);
}

/* Frees what the answer held; its state and flags stay, so to use the structure again it is set to
 * zero. */
void net_parts_close(net_parts *p)
{
    text_free(&p->reasoning);
    text_free(&p->content);
    text_free(&p->pending);
    arena_free(&p->arena);
}
