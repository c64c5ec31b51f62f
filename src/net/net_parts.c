/* net_parts.c - an answer of a chat, as it comes -> reasoning, content, and calls of tools.
 *
 * A state machine over the text that is not yet decided: each step takes as much of it as the state allows and says
 * whether another step may take more.
 */
#include "net/net_parts.h"
#include "net/net_random.h"

static const str think = {"<think>", 7}, unthink = {"</think>", 8}, open_call = {"<tool_call>", 11},
                 close_call = {"</tool_call>", 12};

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

static bool begins(str s, str with)
{
    return s.n >= with.n && memcmp(s.at, with.at, with.n) == 0;
}

/* May s, with more to come, begin with the mark? */
static bool may_begin(str s, str mark)
{
    return s.n < mark.n && memcmp(s.at, mark.at, s.n) == 0;
}

/* How many bytes at the end of s are the beginning of the mark. */
static size_t count_unsure(str s, str mark)
{
    for (size_t n = mark.n - 1 < s.n ? mark.n - 1 : s.n; n > 0; n--)
        if (memcmp(s.at + s.n - n, mark.at, n) == 0)
            return n;
    return 0;
}

static str pending(const net_parts *p)
{
    return (str){p->pending.at ? p->pending.at : "", p->pending.n};
}

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

static void add_reasoning(net_parts *p, str s)
{
    if (p->hide_reasoning)
        return;
    text_add(&p->reasoning, s.at, s.n);
    p->any_reasoning |= s.n > 0;
}

/* ---- calls ---- */

static bool is_tool(const json_value *tools, str name)
{
    for (size_t i = 0; i < tools->n; i++) {
        const json_value *known = json_get(json_get(&tools->items[i], "function"), "name");
        if (known && str_equal(known->text, name))
            return true;
    }
    return false;
}

/* {"name": ..., "arguments" or "parameters": ...}; *found: it is one, and it has been added. */
static mpk_status add_call(mpk_context *cx, net_parts *p, const json_value *v, bool *found)
{
    const json_value *name = json_get(v, "name"), *arguments = json_get(v, "arguments");
    *found = p->one_call && p->calls.n; /* then it is left out */
    if (*found)
        return MPK_OK;
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
    net_call call = {.name = {arena_copy(&p->arena, name->text.at, name->text.n), name->text.n},
                     .arguments = {t.failed ? NULL : arena_copy(&p->arena, t.at ? t.at : "", t.n), t.n}};
    text_free(&t);
    CHECK(cx, call.name.at && call.arguments.at, MPK_ENOMEM, "out of memory for a call of a tool");
    TRY(net_random_id(cx, "call_", call.id, sizeof call.id));
    PUSH(cx, &p->arena, &p->calls, call);
    *found = true;
    return MPK_OK;
}

/* JSON that the model wrote; *out is NULL if it is none. */
static mpk_status parse(mpk_context *cx, net_parts *p, str source, const json_value **out)
{
    char *copy = arena_copy(&p->arena, source.at, source.n); /* values are slices of it, and pending moves */
    CHECK(cx, copy, MPK_ENOMEM, "out of memory for a call of a tool");
    *out = NULL;
    mpk_status status = json_parse(cx, &p->arena, (str){copy, source.n}, out);
    return status == MPK_ENOMEM ? status : MPK_OK;
}

static mpk_status take_block(mpk_context *cx, net_parts *p, str block, str end)
{
    const json_value *v;
    bool found;
    TRY(parse(cx, p, block, &v));
    TRY(add_call(cx, p, v, &found));
    if (!found) {
        add_content(p, open_call);
        add_content(p, block);
        add_content(p, end);
    }
    return MPK_OK;
}

/* Is all of it calls of tools that were given?  An answer in JSON is then not mistaken for one. */
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

static mpk_status take_bare(mpk_context *cx, net_parts *p)
{
    const json_value *v;
    TRY(parse(cx, p, pending(p), &v));
    bool list = json_is(v, JSON_KIND_LIST), found;
    const json_value *items = list ? v->items : v;
    size_t n = !v ? 0 : list ? v->n : 1;
    if (!all_calls(p->tools, items, n))
        add_content(p, pending(p));
    else
        for (size_t i = 0; i < n; i++)
            TRY(add_call(cx, p, &items[i], &found));
    drop(p, p->pending.n);
    return MPK_OK;
}

/* ---- steps: true if another one may take more ---- */

static bool step_start(net_parts *p)
{
    str s = pending(p), rest = {s.at + skip_space(s), s.n - skip_space(s)};
    if (!rest.n || may_begin(rest, think))
        return false;
    p->state = NET_PARTS_OPEN;
    if (begins(rest, think)) {
        drop(p, s.n - rest.n + think.n);
        p->state = NET_PARTS_REASONING;
    }
    return true;
}

static bool step_reasoning(net_parts *p)
{
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

static bool step_open(net_parts *p)
{
    str s = pending(p), rest = {s.at + skip_space(s), s.n - skip_space(s)};
    if (!rest.n && (p->tools || p->drop_space))
        return false;
    if (p->tools && may_begin(rest, open_call))
        return false;
    p->state = NET_PARTS_CONTENT;
    if (p->tools && begins(rest, open_call)) {
        drop(p, s.n - rest.n + open_call.n);
        p->state = NET_PARTS_CALL;
    } else if (p->tools && !p->any_content && !p->calls.n && (*rest.at == '{' || *rest.at == '['))
        p->state = NET_PARTS_BARE;
    else if (p->drop_space)
        drop(p, s.n - rest.n);
    return true;
}

static bool step_content(net_parts *p)
{
    str s = pending(p);
    const char *mark = p->tools && s.n ? memmem(s.at, s.n, open_call.at, open_call.n) : NULL;
    size_t n = mark ? (size_t)(mark - s.at) : s.n - (p->tools ? count_unsure(s, open_call) : 0);
    add_content(p, (str){s.at, n});
    drop(p, n + (mark ? open_call.n : 0));
    if (mark)
        p->state = NET_PARTS_CALL;
    return mark != NULL;
}

static mpk_status step_call(mpk_context *cx, net_parts *p, bool *more)
{
    str s = pending(p);
    const char *end = s.n ? memmem(s.at, s.n, close_call.at, close_call.n) : NULL;
    *more = end != NULL;
    if (!end)
        return MPK_OK;
    str block = {s.at, (size_t)(end - s.at)};
    TRY(take_block(cx, p, block, close_call));
    drop(p, block.n + close_call.n);
    p->state = NET_PARTS_OPEN;
    p->drop_space = true;
    return MPK_OK;
}

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

/* ---- the outside ---- */

void net_parts_open(net_parts *p, const json_value *tools, str prompt)
{
    prompt = trim_end(prompt);
    p->tools = tools;
    if (prompt.n >= think.n && memcmp(prompt.at + prompt.n - think.n, think.at, think.n) == 0)
        p->state = NET_PARTS_REASONING;
}

mpk_status net_parts_put(mpk_context *cx, net_parts *p, str piece)
{
    bool more = piece.n > 0;
    text_add(&p->pending, piece.at, piece.n);
    TRY(check_texts(cx, p));
    while (more)
        TRY(step(cx, p, &more));
    return check_texts(cx, p);
}

mpk_status net_parts_end(mpk_context *cx, net_parts *p)
{
    str rest = pending(p);
    if (p->state == NET_PARTS_BARE)
        TRY(take_bare(cx, p));
    else if (p->state == NET_PARTS_CALL)
        TRY(take_block(cx, p, rest, (str){0}));
    else if (p->state == NET_PARTS_REASONING)
        add_reasoning(p, trim_end(rest));
    else if (!p->drop_space || skip_space(rest) < rest.n)
        add_content(p, rest);
    drop(p, p->pending.n);
    return check_texts(cx, p);
}

void net_parts_close(net_parts *p)
{
    text_free(&p->reasoning);
    text_free(&p->content);
    text_free(&p->pending);
    arena_free(&p->arena);
}
