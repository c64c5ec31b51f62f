/* tokenizer_bytes.c - what each token adds to a text, as bytes; for masks of tokens (src/grammar).
 *
 * The decoding steps of tokenizer_decode.c, for one token in the middle of a text: what they do at
 * a text's ends does not happen, and a character may be cut.
 *
 *   "Ġthe"     " the"        byte-level: characters back to bytes
 *   "▁the"     " the"        sentencepiece: the marker of a space
 *   "<0xE2>"   one byte 0xE2, the beginning of a character
 *   "</s>"     nothing       special */
#include "load/tokenizer_parts.h"

/* One token while it is decoded: it is in `from`; a step writes to `to` and then swaps the two. */
typedef struct bytes_maker {
    const tokenizer *t;
    regex_match *match;
    text from, to;
} bytes_maker;

static void swap(bytes_maker *b)
{
    text made = b->to;
    b->to = b->from;
    b->from = made;
}

/* Turn characters that stand for bytes back into bytes; a token with other characters stays
 * text. */
static void unbytes(bytes_maker *b)
{
    b->to.n = 0;
    for (size_t i = 0; i < b->from.n; i += utf8_length(b->from.at + i)) {
        int byte = byte_from_char(utf8_get(b->from.at + i));
        if (byte < 0)
            return;
        text_add(&b->to, &(char){(char)byte}, 1);
    }
    swap(b);
}

/* Every marker becomes a space: the exception for the first token of a text does not apply here. */
static void spaces(bytes_maker *b, str space)
{
    b->to.n = 0;
    for (size_t i = 0, n; i < b->from.n; i += n) {
        n = utf8_length(b->from.at + i);
        if (str_equal((str){b->from.at + i, n}, space))
            text_add(&b->to, " ", 1);
        else
            text_add(&b->to, b->from.at + i, n);
    }
    swap(b);
}

/* Apply one decoding step; steps that act at a text's ends only do nothing here. From b->from to
 * b->from, by way of b->to where a step writes anew. */
static mpk_status run_step(mpk_context *cx, bytes_maker *b, const step *st)
{
    int byte;
    switch (st->kind) {
    case STEP_UNBYTES:
        unbytes(b);
        break;
    case STEP_METASPACE:
        spaces(b, st->content);
        break;
    case STEP_BYTE_FALLBACK:
        byte = byte_of_token((str){b->from.at, b->from.n});
        if (byte >= 0) {
            b->from.n = 0;
            text_add(&b->from, &(char){(char)byte}, 1);
        }
        break;
    case STEP_REPLACE:
        b->to.n = 0;
        TRY(run_replace(cx, b->match, st, (str){b->from.at, b->from.n}, &b->to));
        swap(b);
        break;
    case STEP_JOIN:
        FAIL(cx, MPK_EUNSUPPORTED,
             "the tokenizer puts a blank between tokens: what one adds depends on the others");
    default:
        break;
    }
    CHECK(cx, !b->from.failed && !b->to.failed, MPK_ENOMEM,
          "out of memory for the bytes of tokens");
    return MPK_OK;
}

/* The bytes of one token; special tokens and unused ids have none. */
static mpk_status make_one(mpk_context *cx, bytes_maker *b, arena *a, int32_t id, str *out)
{
    str token = tokenizer_token(b->t, id);
    *out = (str){"", 0};
    if (!token.at || !token.n || tokenizer_is_special(b->t, id))
        return MPK_OK;
    b->from.n = 0;
    text_add(&b->from, token.at, token.n);
    for (size_t i = 0; i < b->t->decode.n && b->from.n; i++)
        TRY(run_step(cx, b, &b->t->decode.at[i]));
    *out = (str){arena_copy(a, b->from.at, b->from.n), b->from.n};
    CHECK(cx, out->at, MPK_ENOMEM, "out of memory for the bytes of tokens");
    return MPK_OK;
}

/* bytes[i] for the ids below n, in arena `a`. */
mpk_status tokenizer_bytes(mpk_context *cx, const tokenizer *t, arena *a, uint32_t n, str *bytes)
{
    bytes_maker b = {.t = t};
    mpk_status status = regex_match_new(cx, &b.match);
    for (uint32_t i = 0; i < n && status == MPK_OK; i++)
        status = make_one(cx, &b, a, (int32_t)i, &bytes[i]);
    regex_match_free(b.match);
    text_free(&b.from);
    text_free(&b.to);
    return status;
}
