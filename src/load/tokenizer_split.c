/* tokenizer_split.c - the steps that cut text into words, depth first.
 *
 * Each step takes one piece and passes its parts to the next step, so there is no list of pieces
 * and the memory is that of the longest piece for each step.  After the last step a piece is a
 * word for BPE.
 *
 * What becomes of matches (a comma here) in "a,b":
 *
 *   REMOVED                "a" "b"          ISOLATED           "a" "," "b"
 *   MERGED_WITH_PREVIOUS   "a," "b"         MERGED_WITH_NEXT   "a" ",b"
 *   CONTIGUOUS             as ISOLATED, but neighbouring matches are one piece
 *
 * Called by tokenizer.c for each section between added tokens.
 */
#include "load/tokenizer_parts.h"

/* Is a character in the class that a step names instead of a pattern? */
static bool char_matches(match_kind kind, uint32_t c)
{
    switch (kind) {
    case MATCH_SPACE:
        return char_is_space(c);
    case MATCH_NUMERIC:
        return char_is_numeric(c);
    default:
        return char_is_punctuation(c);
    }
}

/* The first single character of a class at or after `from`. */
static bool find_char(match_kind kind, str in, size_t from, size_t *start, size_t *end)
{
    for (size_t i = from; i < in.n; i = *end) {
        *start = i;
        *end = i + utf8_length(in.at + i);
        if (char_matches(kind, utf8_get(in.at + i)))
            return true;
    }
    return false;
}

/* The first place of a literal, which is not empty (tokenizer_json_values.c). */
static bool find_literal(str literal, str in, size_t from, size_t *start, size_t *end)
{
    const char *at = from < in.n ? memmem(in.at + from, in.n - from, literal.at, literal.n) : NULL;
    if (!at)
        return false;
    *start = (size_t)(at - in.at);
    *end = *start + literal.n;
    return true;
}

/* The first match at or after f->from. */
static mpk_status find(finder *f, bool *found)
{
    const step *s = f->step;
    if (s->match == MATCH_REGEX)
        return regex_find(f->cx, f->match, s->regex, f->in, f->from, found, &f->start, &f->end);
    *found = s->match == MATCH_LITERAL
                 ? find_literal(s->literal, f->in->original, f->from, &f->start, &f->end)
                 : find_char(s->match, f->in->original, f->from, &f->start, &f->end);
    return MPK_OK;
}

/* The next match.  An empty match directly after the last one is skipped, as regular expression
 * libraries do, by advancing one character. */
mpk_status finder_next(finder *f, bool *found)
{
    str in = f->in->original;
    for (;;) {
        *found = false;
        if (f->from > in.n || !in.n)
            return MPK_OK;
        TRY(find(f, found));
        if (!*found)
            return MPK_OK;
        if (f->start != f->end || !f->any || f->last_end != f->end)
            break;
        f->from += f->from < in.n ? utf8_length(in.at + f->from) : 1;
    }
    f->from = f->last_end = f->end;
    f->any = true;
    return MPK_OK;
}

/* A cut while it is made: ranges of a piece, matched or not, arrive in order and leave as pieces
 * by the behaviour. */
typedef struct splitter {
    encoder *e;
    const step *step;
    size_t k; /* of step */
    str piece;
    bool at_start;
    bool pending, pending_matched; /* a range that may still grow */
    size_t start, end;
} splitter;

/* Pass a part of the piece to the next step; empty ones are dropped. */
static mpk_status pass_on(splitter *sp, size_t start, size_t end)
{
    if (start == end)
        return MPK_OK;
    return run_split(sp->e, sp->k + 1, (str){sp->piece.at + start, end - start},
                     sp->at_start && start == 0);
}

/* Does the range that follows the pending one become part of it? */
static bool joins(const splitter *sp, bool matched)
{
    switch (sp->step->behavior) {
    case SPLIT_CONTIGUOUS:
        return matched == sp->pending_matched;
    case SPLIT_MERGED_WITH_PREVIOUS:
        return matched && !sp->pending_matched;
    case SPLIT_MERGED_WITH_NEXT:
        return !matched && sp->pending_matched;
    default:
        return false;
    }
}

/* Take the next range; matched and unmatched ones alternate.  One is kept pending, because the next
 * one may join it. MERGED_WITH_PREVIOUS of "a-b-c" at "-": "a", then "-" joins it to "a-", then "b"
 * begins a new one. */
static mpk_status take_range(splitter *sp, size_t start, size_t end, bool matched)
{
    if (sp->step->invert)
        matched = !matched;
    if (sp->step->behavior == SPLIT_REMOVED && matched)
        return MPK_OK;
    if (sp->pending && joins(sp, matched)) {
        sp->end = end;
        sp->pending_matched = matched;
        return MPK_OK;
    }
    if (sp->pending)
        TRY(pass_on(sp, sp->start, sp->end));
    sp->pending = true;
    sp->pending_matched = matched;
    sp->start = start;
    sp->end = end;
    return MPK_OK;
}

/* Cut one piece by step k; its parts go to step k + 1 as they are found. finder_next gives matches
 * from left to right that do not overlap; what lies between them are unmatched ranges. */
static mpk_status split(encoder *e, size_t k, str piece, bool at_start)
{
    splitter sp = {
        .e = e, .step = &e->t->split.at[k], .k = k, .piece = piece, .at_start = at_start};
    finder f = {.cx = e->cx, .match = e->match, .step = sp.step, .in = &e->subjects[k]};
    TRY(subject_set(e->cx, &e->subjects[k], piece));
    size_t before = 0;
    for (;;) {
        bool found;
        TRY(finder_next(&f, &found));
        if (!found)
            break;
        if (f.start > before)
            TRY(take_range(&sp, before, f.start, false));
        TRY(take_range(&sp, f.start, f.end, true));
        before = f.end;
    }
    if (before < piece.n)
        TRY(take_range(&sp, before, piece.n, false));
    return sp.pending ? pass_on(&sp, sp.start, sp.end) : MPK_OK;
}

/* Steps that write a new text for the piece, in the step's own buffer. A step has one buffer, and a
 * piece goes through all later steps before the next one comes: so the buffer is free again. */
static mpk_status rewrite(encoder *e, size_t k, str piece, bool at_start)
{
    const step *s = &e->t->split.at[k];
    text *to = &e->buffers[k];
    to->n = 0;
    if (s->kind == STEP_BYTES) {
        for (size_t i = 0; i < piece.n; i++)
            utf8_add(to, byte_to_char((unsigned char)piece.at[i]));
    } else if (s->kind == STEP_REPLACE) {
        TRY(run_replace(e->cx, e->match, s, piece, to));
    } else {
        bool there = piece.n >= s->content.n && memcmp(piece.at, s->content.at, s->content.n) == 0;
        if (there || s->scheme == PREFIX_NEVER || (s->scheme == PREFIX_FIRST && !at_start))
            return run_split(e, k + 1, piece, at_start);
        text_add(to, s->content.at, s->content.n);
        text_add(to, piece.at, piece.n);
    }
    TRY(text_check(e->cx, to));
    return run_split(e, k + 1, (str){to->at, to->n}, at_start);
}

/* Recursion is as deep as there are steps, at most MAX_STEPS. */
mpk_status run_split(encoder *e, size_t k, str piece, bool at_start)
{
    if (k == e->t->split.n)
        return run_bpe(e, piece);
    if (e->t->split.at[k].kind == STEP_SPLIT)
        return split(e, k, piece, at_start);
    return rewrite(e, k, piece, at_start);
}
