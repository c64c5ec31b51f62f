/* tokenizer_decode.c - ids -> text, at once or token by token.
 *
 * Decoding steps are defined on a list of tokens: each takes the tokens of the step before.
 * Here each step takes them one by one and keeps only what it must, so that text flows while
 * tokens arrive; decoding at once is the same with a known end.  After a step that joins all
 * tokens into one (fuse, byte level), later steps see parts of one token; steps that then need
 * it whole hold it until the end.
 *
 *   steps replace "▁" by " ", byte fallback, fuse, strip one " " at the beginning
 *   tokens    "▁I"    "▁am"    "<0xC3>"    "<0xBC>"    "▁4"
 *   text      "I"     " am"    ""          "ü"         " 4"
 *
 * Called by the engine, for answers that are streamed (tokenizer_stream_put) and for complete
 * ones (tokenizer_decode).
 */
#include "load/tokenizer_parts.h"

#include <stdlib.h>

/* What one decoding step keeps between tokens. */
typedef struct stage {
    bool fused;      /* its input is one token that arrives in parts */
    bool hold;       /* it needs that token whole; `held` collects it */
    bool first_done; /* it has seen a token */
    uint32_t left;   /* STEP_STRIP_TOKEN: characters it may still drop */
    text held;
    utf8_rest rest; /* STEP_UNBYTES */
} stage;

/* Ids in, text out, one at a time.  stages[k] and scratch[k] belong to step k of the tokenizer's
 * decoder; `rest` holds the first bytes of a character whose others have not come.
 */
struct tokenizer_stream {
    const tokenizer *t;
    unsigned flags;
    /* text is not shown before the end: invalid byte tokens are replaced as the library does */
    bool whole;
    regex_match *match;
    stage stages[MAX_STEPS];
    text scratch[MAX_STEPS];
    text out; /* valid UTF-8 */
    utf8_rest rest;
};

/* Give a token to step k.  Steps call each other through this, so between two steps there is
 * never more than one token. */
static mpk_status feed(mpk_context *cx, tokenizer_stream *s, size_t k, str token);

/* After the last step: append the text, made valid UTF-8. */
static mpk_status sink(mpk_context *cx, tokenizer_stream *s, str token)
{
    utf8_add_valid(&s->out, &s->rest, token.at, token.n);
    return text_check(cx, &s->out);
}

/* --- one token through one step --- */

/* STEP_UNBYTES.  The bytes may end within a character; `rest` keeps its beginning for the next
 * token. */
static mpk_status feed_unbytes(mpk_context *cx, tokenizer_stream *s, size_t k, str token)
{
    text *bytes = &s->scratch[k];
    bytes->n = 0;
    /* every character stands for a byte; otherwise the token is text */
    bool spelled = true;
    for (size_t i = 0; spelled && i < token.n; i += utf8_length(token.at + i)) {
        int byte = byte_from_char(utf8_get(token.at + i));
        spelled = byte >= 0;
        text_add(bytes, &(char){(char)byte}, 1);
    }
    if (!spelled) {
        bytes->n = 0;
        text_add(bytes, token.at, token.n);
    }
    TRY(text_check(cx, bytes));
    text *valid = &s->stages[k].held;
    valid->n = 0;
    utf8_add_valid(valid, &s->stages[k].rest, bytes->at, bytes->n);
    TRY(text_check(cx, valid));
    return feed(cx, s, k + 1, (str){valid->at, valid->n});
}

/* STEP_METASPACE.  The first token loses the space that encoding put before the text.  After a
 * fuse all parts belong to one first token, so every marker in them loses its space: first_done
 * stays false. */
static mpk_status feed_metaspace(mpk_context *cx, tokenizer_stream *s, size_t k, str token)
{
    const step *st = &s->t->decode.at[k];
    stage *g = &s->stages[k];
    text *to = &s->scratch[k];
    to->n = 0;
    bool drop = !g->first_done && st->scheme != PREFIX_NEVER;
    for (size_t i = 0, n; i < token.n; i += n) {
        n = utf8_length(token.at + i);
        if (!str_equal((str){token.at + i, n}, st->content))
            text_add(to, token.at + i, n);
        else if (!drop)
            text_add(to, " ", 1);
    }
    g->first_done = g->first_done || !g->fused;
    TRY(text_check(cx, to));
    return feed(cx, s, k + 1, (str){to->at, to->n});
}

/* "<0x41>" is 0x41; -1 for any other text. */
int byte_of_token(str token)
{
    if (token.n != 6 || memcmp(token.at, "<0x", 3) != 0 || token.at[5] != '>')
        return -1;
    int value = 0;
    for (int i = 3; i < 5; i++) {
        const int digit = str_hex_digit(token.at[i]);
        if (digit < 0)
            return -1;
        value = value * 16 + digit;
    }
    return value;
}

/* A run of byte tokens has ended: its text if it is valid UTF-8, otherwise U+FFFD for each byte. */
static mpk_status flush_bytes(mpk_context *cx, tokenizer_stream *s, size_t k)
{
    text *run = &s->stages[k].held, *to = &s->scratch[k];
    if (!run->n)
        return MPK_OK;
    to->n = 0;
    text_add(to, run->at, run->n);
    size_t n = run->n;
    run->n = 0;
    TRY(text_check(cx, to));
    if (utf8_is_valid((str){to->at, to->n}))
        return feed(cx, s, k + 1, (str){to->at, to->n});
    for (size_t i = 0; i < n; i++)
        TRY(feed(cx, s, k + 1, STR("\xef\xbf\xbd")));
    return MPK_OK;
}

/* STEP_BYTE_FALLBACK.  Bytes are collected until another token comes; flush_bytes then decides
 * about the run. */
static mpk_status feed_byte_fallback(mpk_context *cx, tokenizer_stream *s, size_t k, str token)
{
    int byte = byte_of_token(token);
    text *run = &s->stages[k].held;
    if (byte < 0) {
        TRY(flush_bytes(cx, s, k));
        return feed(cx, s, k + 1, token);
    }
    text_add(run, &(char){(char)byte}, 1);
    TRY(text_check(cx, run));
    /* if the parts are joined anyway, a complete character is shown at once */
    bool joined = k + 1 == s->t->decode.n || s->t->decode.at[k + 1].kind == STEP_FUSE;
    if (!s->whole && joined && utf8_is_valid((str){run->at, run->n}))
        return flush_bytes(cx, s, k);
    return MPK_OK;
}

/* STEP_STRIP_TOKEN: remove up to `left` and `right` times the content at a token's ends; of a
 * joined token only the left end is known. */
static mpk_status feed_strip(mpk_context *cx, tokenizer_stream *s, size_t k, str token)
{
    const step *st = &s->t->decode.at[k];
    stage *g = &s->stages[k];
    size_t n = st->content.n;
    uint32_t left = g->fused && !g->hold ? g->left : st->left;
    while (left && token.n >= n && memcmp(token.at, st->content.at, n) == 0) {
        token = (str){token.at + n, token.n - n};
        left--;
    }
    g->left = token.n ? 0 : left;
    for (uint32_t right = st->right;
         right && token.n >= n && memcmp(token.at + token.n - n, st->content.at, n) == 0; right--)
        token.n -= n;
    return feed(cx, s, k + 1, token);
}

/* STEP_JOIN: a space before every token but the first. */
static mpk_status feed_join(mpk_context *cx, tokenizer_stream *s, size_t k, str token)
{
    if (s->stages[k].first_done)
        TRY(feed(cx, s, k + 1, STR(" ")));
    s->stages[k].first_done = true;
    return feed(cx, s, k + 1, token);
}

/* One token through step k; steps that streaming does not need (fuse) pass it on. Steps are a
 * chain: each feeds the next as soon as it knows what to pass on, so text comes out token by
 * token. */
static mpk_status feed_step(mpk_context *cx, tokenizer_stream *s, size_t k, str token)
{
    const step *st = &s->t->decode.at[k];
    switch (st->kind) {
    case STEP_UNBYTES:
        return feed_unbytes(cx, s, k, token);
    case STEP_METASPACE:
        return feed_metaspace(cx, s, k, token);
    case STEP_BYTE_FALLBACK:
        return feed_byte_fallback(cx, s, k, token);
    case STEP_STRIP_TOKEN:
        return feed_strip(cx, s, k, token);
    case STEP_JOIN:
        return feed_join(cx, s, k, token);
    case STEP_REPLACE:
        s->scratch[k].n = 0;
        TRY(run_replace(cx, s->match, st, token, &s->scratch[k]));
        return feed(cx, s, k + 1, (str){s->scratch[k].at, s->scratch[k].n});
    default:
        return feed(cx, s, k + 1, token);
    }
}

/* After the last step a token is text.  A step that holds keeps it until the end. */
static mpk_status feed(mpk_context *cx, tokenizer_stream *s, size_t k, str token)
{
    if (!token.at)
        token.at = "";
    if (k == s->t->decode.n)
        return sink(cx, s, token);
    if (!s->stages[k].hold)
        return feed_step(cx, s, k, token);
    text_add(&s->stages[k].held, token.at, token.n);
    return text_check(cx, &s->stages[k].held);
}

/* --- the end --- */

/* No more tokens come for step k.  The token that it holds goes through it now, before the bytes
 * that wait for a successor. held is taken out first, since feeding it may hold another one. */
static mpk_status end_step(mpk_context *cx, tokenizer_stream *s, size_t k)
{
    stage *g = &s->stages[k];
    if (g->hold) {
        text token = g->held;
        g->held = (text){0};
        mpk_status status = feed_step(cx, s, k, (str){token.at, token.n});
        text_free(&token);
        TRY(status);
    }
    if (s->t->decode.at[k].kind == STEP_BYTE_FALLBACK)
        return flush_bytes(cx, s, k);
    if (s->t->decode.at[k].kind == STEP_UNBYTES && g->rest.n) {
        g->held.n = 0;
        utf8_end_valid(&g->held, &g->rest);
        TRY(text_check(cx, &g->held));
        return feed(cx, s, k + 1, (str){g->held.at, g->held.n});
    }
    return MPK_OK;
}

/* Prepare for another text with the same steps. */
static void reset(tokenizer_stream *s)
{
    for (size_t k = 0; k < s->t->decode.n; k++) {
        stage *g = &s->stages[k];
        g->first_done = false;
        g->left = s->t->decode.at[k].left;
        g->held.n = 0;
        g->rest.n = 0;
    }
    s->rest.n = 0;
}

/* End the steps in order, since what one step releases goes through those after it. */
static mpk_status end(mpk_context *cx, tokenizer_stream *s)
{
    for (size_t k = 0; k < s->t->decode.n; k++)
        TRY(end_step(cx, s, k));
    utf8_end_valid(&s->out, &s->rest);
    return text_check(cx, &s->out);
}

/* --- interface --- */

/* Find which steps see one joined token, and which of them need it whole. */
static void plan_stages(tokenizer_stream *s)
{
    bool fused = false;
    for (size_t k = 0; k < s->t->decode.n; k++) {
        const step *st = &s->t->decode.at[k];
        s->stages[k].fused = fused;
        s->stages[k].hold = fused && (st->kind == STEP_REPLACE || st->kind == STEP_UNBYTES ||
                                      st->kind == STEP_BYTE_FALLBACK ||
                                      (st->kind == STEP_STRIP_TOKEN && st->right));
        fused = fused || st->kind == STEP_FUSE || st->kind == STEP_UNBYTES;
    }
}

/* `t` is borrowed and must outlive the stream. */
mpk_status tokenizer_stream_open(mpk_context *cx, const tokenizer *t, unsigned flags,
                                 tokenizer_stream **out)
{
    tokenizer_stream *s = calloc(1, sizeof *s);
    CHECK(cx, s, MPK_ENOMEM, "out of memory for a stream of text");
    s->t = t;
    s->flags = flags;
    mpk_status status = regex_match_new(cx, &s->match);
    if (status != MPK_OK) {
        free(s);
        return status;
    }
    plan_stages(s);
    reset(s);
    *out = s;
    return MPK_OK;
}

/* The tokenizer must be alive as long as its streams are. */
void tokenizer_stream_close(tokenizer_stream *s)
{
    if (!s)
        return;
    for (size_t k = 0; k < MAX_STEPS; k++) {
        text_free(&s->stages[k].held);
        text_free(&s->scratch[k]);
    }
    text_free(&s->out);
    regex_match_free(s->match);
    free(s);
}

/* Unused ids, and special ones if they are not wanted, give nothing. */
static mpk_status put_id(mpk_context *cx, tokenizer_stream *s, int32_t id)
{
    str token = tokenizer_token(s->t, id);
    if (!token.at || ((s->flags & TOKENIZER_SKIP_SPECIAL) && s->t->special[id]))
        return MPK_OK;
    return feed(cx, s, 0, token);
}

/* *piece is the text that can be shown now, valid until the next call; it may be empty. */
mpk_status tokenizer_stream_put(mpk_context *cx, tokenizer_stream *s, int32_t id, str *piece)
{
    s->out.n = 0;
    TRY(put_id(cx, s, id));
    *piece = (str){s->out.at ? s->out.at : "", s->out.n};
    return MPK_OK;
}

/* *piece is the text that waited, valid until the next call; the stream can be used again. */
mpk_status tokenizer_stream_end(mpk_context *cx, tokenizer_stream *s, str *piece)
{
    s->out.n = 0;
    mpk_status status = end(cx, s);
    reset(s);
    TRY(status);
    *piece = (str){s->out.at ? s->out.at : "", s->out.n};
    return MPK_OK;
}

/* The same code as streaming, with a known end (whole). `whole` tells steps that act at the ends of
 * a text that the first token is its beginning. */
mpk_status tokenizer_decode(mpk_context *cx, const tokenizer *t, arena *a, const int32_t *ids,
                            size_t n, unsigned flags, str *out)
{
    tokenizer_stream *s;
    TRY(tokenizer_stream_open(cx, t, flags, &s));
    s->whole = true;
    mpk_status status = MPK_OK;
    for (size_t i = 0; status == MPK_OK && i < n; i++)
        status = put_id(cx, s, ids[i]);
    if (status == MPK_OK)
        status = end(cx, s);
    if (status == MPK_OK) {
        char *copy = arena_copy(a, s->out.at, s->out.n);
        *out = (str){copy, s->out.n};
        if (!copy)
            status = status_fail(cx, MPK_ENOMEM, "out of memory for %zu bytes of text", s->out.n);
    }
    tokenizer_stream_close(s);
    return status;
}
