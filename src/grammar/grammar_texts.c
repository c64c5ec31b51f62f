/* grammar_texts.c - one of many texts, as a tree of what they begin with.
 *
 * Ten thousand choices are then at most 256 places at once, not ten thousand.  Cost: sorting.
 *
 * ["abc", "abd", "x"]  becomes  ALT( "ab" ALT( "c", "d" ), "x" ).  Called for choices, for enums
 * of scalars, and for ends of tags. */
#include <stdlib.h>

#include "grammar/grammar_parts.h"

/* Levels of the tree; texts that share more beginnings are alternatives side by side from there
 * on, so that recursion is bounded. */
enum { MOST_LEVELS = 256 };

/* By bytes; a text comes before those that begin with it, on which join relies. */
int texts_compare(const void *a, const void *b)
{
    const str *x = a, *y = b;
    size_t n = x->n < y->n ? x->n : y->n;
    int order = n ? memcmp(x->at, y->at, n) : 0;
    if (order)
        return order;
    return x->n < y->n ? -1 : x->n > y->n;
}

/* The text as it is spelled within a JSON string. */
static mpk_status escape(maker *k, str *s)
{
    text quoted = {0};
    json_write_str(&quoted, *s);
    char *copy = quoted.failed ? NULL : arena_copy(k->a, quoted.at + 1, quoted.n - 2);
    *s = (str){copy, quoted.n - 2};
    text_free(&quoted);
    CHECK(k->cx, copy, MPK_ENOMEM, "out of memory for a text of a grammar");
    return MPK_OK;
}

static mpk_status join(maker *k, const str *texts, size_t n, size_t at, uint32_t level,
                       const node **out);

/* The texts after their common beginning: those that end, and groups with the same next byte. */
static mpk_status part(maker *k, const str *texts, size_t n, size_t at, uint32_t level, node *alt)
{
    const node *child = NULL;
    for (size_t i = 0, end; i < n; i = end) {
        end = i + 1;
        if (texts[i].n == at) {
            while (end < n && texts[end].n == at)
                end++;
            TRY(node_bytes(k, (str){0}, &child));
        } else {
            while (level < MOST_LEVELS && end < n && texts[end].at[at] == texts[i].at[at])
                end++;
            TRY(join(k, texts + i, end - i, at, level + 1, &child));
        }
        TRY(node_add(k, alt, child));
    }
    return MPK_OK;
}

/* Sorted texts from byte `at` on. */
static mpk_status join(maker *k, const str *texts, size_t n, size_t at, uint32_t level,
                       const node **out)
{
    size_t same = at, most = texts[0].n < texts[n - 1].n ? texts[0].n : texts[n - 1].n;
    const node *head;
    node *alt;
    while (same < most && texts[0].at[same] == texts[n - 1].at[same])
        same++;
    TRY(node_bytes(k, (str){texts[0].at + at, same - at}, &head));
    if (n == 1) {
        *out = head;
        return MPK_OK;
    }
    TRY(node_new(k, NODE_ALT, &alt));
    TRY(part(k, texts, n, same, level, alt));
    return node_pair(k, NODE_SEQ, head, alt, out);
}

/* `texts` is sorted in place, and in a JSON string replaced by its escaped spellings. */
mpk_status node_texts(maker *k, str *texts, size_t n, const node **out)
{
    if (!n) {
        node *never;
        TRY(node_new(k, NODE_NEVER, &never));
        *out = never;
        return MPK_OK;
    }
    for (size_t i = 0; i < n && k->in_string; i++)
        TRY(escape(k, &texts[i]));
    qsort(texts, n, sizeof *texts, texts_compare);
    return join(k, texts, n, 0, 0, out);
}
