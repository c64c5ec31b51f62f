/* tokenizer_bpe.c - byte pair encoding: word -> ids.
 *
 * The word begins as one symbol for each character.  A heap holds every pair of neighbours that may
 * merge, ordered by rank, then place; merging a pair changes its two neighbours, so n symbols cost
 * O(n log n) whatever the word.  Entries are not removed when a symbol changes: an entry is stale
 * if its pair no longer gives the token that it was made for.
 *
 *   merges "l o", "lo w", "e r"      l o w e r  ->  lo w e r  ->  low e r  ->  low er
 *
 * Byte-level BPE and tokenizer.json order pairs by a list of merges; the sentencepiece vocabularies
 * of GGUF have none: two symbols merge if their joined text is a token, the one with the highest
 * score first.  Called by tokenizer_split.c, word by word. */
#include "load/tokenizer_parts.h"

#include <stdlib.h>

/* --- the map of pairs --- */

/* Multiplication spreads both ids of a key over the high bits, which are then used. */
static size_t pair_place(uint64_t key, size_t capacity)
{
    key ^= key >> 32;
    key *= UINT64_C(0x9e3779b97f4a7c15);
    return (size_t)(key >> 20) & (capacity - 1);
}

/* Make room for n keys.  At most half of the slots are used, so probing ends and stays short.
 * No key is UINT64_MAX, which would be two ids of -1. */
mpk_status pair_map_reserve(mpk_context *cx, arena *a, pair_map *m, size_t n)
{
    pair_map bigger = {.capacity = 16};
    while (bigger.capacity < 2 * n)
        bigger.capacity *= 2;
    if (bigger.capacity <= m->capacity)
        return MPK_OK;
    NEW(cx, a, bigger.slots, bigger.capacity);
    for (size_t i = 0; i < bigger.capacity; i++)
        bigger.slots[i].key = UINT64_MAX;
    for (size_t i = 0; i < m->capacity; i++)
        if (m->slots[i].key != UINT64_MAX)
            pair_map_put(&bigger, m->slots[i].key, m->slots[i].rank, m->slots[i].id);
    *m = bigger;
    return MPK_OK;
}

/* The slot with this key, or the empty one where it belongs.  capacity must not be 0. */
static pair_slot *pair_slot_of(const pair_map *m, uint64_t key)
{
    size_t i = pair_place(key, m->capacity);
    while (m->slots[i].key != UINT64_MAX && m->slots[i].key != key)
        i = (i + 1) & (m->capacity - 1);
    return &m->slots[i];
}

/* The caller has made room (pair_map_reserve). */
void pair_map_put(pair_map *m, uint64_t key, uint32_t rank, uint32_t id)
{
    pair_slot *slot = pair_slot_of(m, key);
    if (slot->key == UINT64_MAX)
        m->n++;
    *slot = (pair_slot){key, rank, id};
}

/* NULL: the pair does not merge. Valid until the map grows. */
const pair_slot *pair_map_get(const pair_map *m, uint64_t key)
{
    if (!m->n)
        return NULL;
    const pair_slot *slot = pair_slot_of(m, key);
    return slot->key == UINT64_MAX ? NULL : slot;
}

/* --- symbols --- */

/* Make room for one more item in an array on the heap. */
static mpk_status reserve(mpk_context *cx, void **items, size_t n, size_t *capacity,
                          size_t item_bytes)
{
    if (n < *capacity)
        return MPK_OK;
    size_t more = *capacity ? *capacity * 2 : 64;
    void *bigger = realloc(*items, more * item_bytes);
    CHECK(cx, bigger, MPK_ENOMEM, "out of memory for %zu items of %zu bytes", more, item_bytes);
    *items = bigger;
    *capacity = more;
    return MPK_OK;
}

/* Append a symbol.  Symbols form a list by `before` and `after` within one array: merging takes
 * a symbol out of the list, but its place stays. */
static mpk_status add_symbol(encoder *e, int32_t id, size_t start, size_t n)
{
    void *items = e->symbols;
    TRY(reserve(e->cx, &items, e->n_symbols, &e->symbols_capacity, sizeof *e->symbols));
    e->symbols = items;
    int32_t i = (int32_t)e->n_symbols++;
    e->symbols[i] = (symbol){id, i - 1, -1, (uint32_t)start, (uint32_t)n};
    if (i > 0)
        e->symbols[i - 1].after = i;
    return MPK_OK;
}

/* The token with exactly these bytes; -1: there is none. */
static int32_t find_token(const tokenizer *t, const char *at, size_t n)
{
    uint64_t id;
    return map_get(&t->model_ids, (str){at, n}, &id) ? (int32_t)id : -1;
}

/* The token of one character; characters below U+0100, nearly all of byte-level text, are looked
 * up by number. */
static int32_t find_char_token(const tokenizer *t, const char *at, size_t n)
{
    uint32_t c = n <= 2 ? utf8_get(at) : UINT32_MAX;
    return c < 256 ? t->char_ids[c] : find_token(t, at, n);
}

/* The token of a character of a word, with the marks that some vocabularies put on a word's first
 * and last character. With the suffix "</w>" the word "low" begins as l, o, w</w>. */
static mpk_status find_marked(encoder *e, str word, size_t at, size_t n, int32_t *id)
{
    const tokenizer *t = e->t;
    bool prefix = at > 0 && t->prefix.n, suffix = at + n == word.n && t->suffix.n;
    if (!prefix && !suffix) {
        *id = find_char_token(t, word.at + at, n);
        return MPK_OK;
    }
    text marked = {0};
    if (prefix)
        text_add(&marked, t->prefix.at, t->prefix.n);
    text_add(&marked, word.at + at, n);
    if (suffix)
        text_add(&marked, t->suffix.at, t->suffix.n);
    *id = marked.failed ? -1 : find_token(t, marked.at, marked.n);
    mpk_status status = text_check(e->cx, &marked);
    text_free(&marked);
    return status;
}

/* Do all bytes of the part have byte tokens? */
static bool has_byte_tokens(const tokenizer *t, str part)
{
    for (size_t i = 0; i < part.n; i++)
        if (t->byte_ids[(unsigned char)part.at[i]] < 0)
            return false;
    return true;
}

/* Append a symbol for each byte; has_byte_tokens must be true. */
static mpk_status add_bytes(encoder *e, str part, size_t start)
{
    for (size_t i = 0; i < part.n; i++)
        TRY(add_symbol(e, e->t->byte_ids[(unsigned char)part.at[i]], start, 1));
    return MPK_OK;
}

/* The first symbols of a word, one for each character; unknown ones become bytes, the unknown
 * token, or nothing.  The unknown token is appended when the next known character comes (after
 * any bytes), because the library does so. */
static mpk_status start_ranked(encoder *e, str word)
{
    const tokenizer *t = e->t;
    size_t unknown = 0; /* bytes for which an unknown token waits */
    for (size_t i = 0, n; i < word.n; i += n) {
        int32_t id;
        n = utf8_length(word.at + i);
        TRY(find_marked(e, word, i, n, &id));
        if (id >= 0) {
            if (unknown)
                TRY(add_symbol(e, t->unk_id, i, unknown));
            unknown = 0;
            TRY(add_symbol(e, id, i, n));
            continue;
        }
        str prefix = i > 0 ? t->prefix : (str){0}, suffix = i + n == word.n ? t->suffix : (str){0};
        if (t->byte_fallback && has_byte_tokens(t, prefix) &&
            has_byte_tokens(t, (str){word.at + i, n}) && has_byte_tokens(t, suffix)) {
            TRY(add_bytes(e, prefix, i));
            TRY(add_bytes(e, (str){word.at + i, n}, i));
            TRY(add_bytes(e, suffix, i));
        } else if (t->unk_id >= 0) {
            if (unknown && !t->fuse_unk) {
                TRY(add_symbol(e, t->unk_id, i, unknown));
                unknown = 0;
            }
            unknown += n;
        }
    }
    return unknown ? add_symbol(e, t->unk_id, word.n, unknown) : MPK_OK;
}

/* The first symbols with a vocabulary of scores: a character without a token (-1) may still
 * merge into one. */
static mpk_status start_scored(encoder *e, str word)
{
    for (size_t i = 0, n; i < word.n; i += n) {
        n = utf8_length(word.at + i);
        TRY(add_symbol(e, find_char_token(e->t, word.at + i, n), i, n));
    }
    return MPK_OK;
}

/* --- merging --- */

/* A score as an integer of the opposite order: the highest score has the lowest rank. */
static uint32_t rank_of_score(float score)
{
    float x = score + 0.0f; /* -0 and 0 are equal */
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    return u & 0x80000000 ? u : ~u & 0x7fffffff;
}

/* Do two neighbours merge?  *rank and *id: in which order, and to which token. By rank: a list of
 * merges decides. By score: they merge if their joint text is a token, the highest score first. */
static bool find_merge(const encoder *e, str word, const symbol *left, const symbol *right,
                       uint32_t *rank, uint32_t *id)
{
    const tokenizer *t = e->t;
    if (t->order == MERGE_BY_RANK) {
        const pair_slot *slot =
            pair_map_get(&t->merges, (uint64_t)(uint32_t)left->id << 32 | (uint32_t)right->id);
        if (!slot)
            return false;
        *rank = slot->rank;
        *id = slot->id;
        return true;
    }
    size_t n = (size_t)left->n + right->n;
    int32_t found = n <= t->longest_token_bytes ? find_token(t, word.at + left->start, n) : -1;
    if (found < 0)
        return false;
    *rank = rank_of_score(t->scores[found]);
    *id = (uint32_t)found;
    return true;
}

/* Add an entry to the heap.  The smallest `order` is on top: rank in its high half, place of the
 * left symbol in the low half, so equal ranks merge from left to right. */
static mpk_status heap_push(encoder *e, merge_entry entry)
{
    void *items = e->heap;
    TRY(reserve(e->cx, &items, e->n_heap, &e->heap_capacity, sizeof *e->heap));
    e->heap = items;
    size_t i = e->n_heap++;
    while (i && e->heap[(i - 1) / 2].order > entry.order) {
        e->heap[i] = e->heap[(i - 1) / 2];
        i = (i - 1) / 2;
    }
    e->heap[i] = entry;
    return MPK_OK;
}

/* Remove the top; the heap must not be empty. */
static merge_entry heap_pop(encoder *e)
{
    merge_entry top = e->heap[0], last = e->heap[--e->n_heap];
    size_t i = 0, n = e->n_heap;
    for (size_t child; (child = 2 * i + 1) < n; i = child) {
        if (child + 1 < n && e->heap[child + 1].order < e->heap[child].order)
            child++;
        if (e->heap[child].order >= last.order)
            break;
        e->heap[i] = e->heap[child];
    }
    if (n)
        e->heap[i] = last;
    return top;
}

/* Add the pair of a symbol and its successor to the heap, if they merge. */
static mpk_status offer(encoder *e, str word, int32_t left)
{
    uint32_t rank, id;
    if (left < 0 || e->symbols[left].after < 0 ||
        !find_merge(e, word, &e->symbols[left], &e->symbols[e->symbols[left].after], &rank, &id))
        return MPK_OK;
    return heap_push(e, (merge_entry){(uint64_t)rank << 32 | (uint32_t)left, id});
}

/* Merge until no pair is left.  An entry is stale, and dropped, if its left symbol was merged away
 * (n is 0) or if it and its present neighbour no longer merge to the entry's token. `order` of an
 * entry is its rank above its left symbol's number, so of equal ranks the leftmost comes first.
 * Symbols form a list (before, after); the right one of a merge becomes part of the left. Time n
 * log n in the word's length, where trying all pairs each time would be n^2. */
static mpk_status merge_all(encoder *e, str word)
{
    e->n_heap = 0;
    for (size_t i = 0; i < e->n_symbols; i++)
        TRY(offer(e, word, (int32_t)i));
    while (e->n_heap) {
        merge_entry entry = heap_pop(e);
        symbol *left = &e->symbols[(uint32_t)entry.order];
        uint32_t rank, id;
        if (!left->n || left->after < 0)
            continue;
        symbol *right = &e->symbols[left->after];
        if (!find_merge(e, word, left, right, &rank, &id) || id != entry.id)
            continue;
        left->id = (int32_t)id;
        left->n += right->n;
        right->n = 0;
        left->after = right->after;
        if (left->after >= 0)
            e->symbols[left->after].before = (int32_t)(uint32_t)entry.order;
        TRY(offer(e, word, left->before));
        TRY(offer(e, word, (int32_t)(uint32_t)entry.order));
    }
    return MPK_OK;
}

/* --- result --- */

/* Ids are appended to the caller's list directly, in the order of the text. */
static mpk_status put(encoder *e, int32_t id)
{
    PUSH(e->cx, e->out_arena, e->out, id);
    return MPK_OK;
}

/* A character without a token: its bytes, or the unknown token. */
static mpk_status put_unknown(encoder *e, str part)
{
    if (has_byte_tokens(e->t, part)) {
        for (size_t i = 0; i < part.n; i++)
            TRY(put(e, e->t->byte_ids[(unsigned char)part.at[i]]));
        return MPK_OK;
    }
    CHECK(e->cx, e->t->unk_id >= 0, MPK_EUNSUPPORTED,
          "the vocabulary has no token for \"%.*s\", nor for its bytes, nor an unknown token",
          STR_ARG(part));
    return put(e, e->t->unk_id);
}

/* The ids of one word.  A word that is a token itself is not merged if the vocabulary says so
 * (ignore_merges). Symbols that end without a token become the unknown token, or bytes. */
mpk_status run_bpe(encoder *e, str word)
{
    const tokenizer *t = e->t;
    CHECK(e->cx, word.n <= INT32_MAX, MPK_ELIMIT, "a word has %zu bytes, the limit is %d", word.n,
          INT32_MAX);
    int32_t whole = t->ignore_merges ? find_token(t, word.at, word.n) : -1;
    if (whole >= 0)
        return put(e, whole);
    e->n_symbols = 0;
    TRY(t->order == MERGE_BY_RANK ? start_ranked(e, word) : start_scored(e, word));
    TRY(merge_all(e, word));
    for (size_t i = 0; i < e->n_symbols; i++) {
        const symbol *s = &e->symbols[i];
        if (s->n && s->id < 0)
            TRY(put_unknown(e, (str){word.at + s->start, s->n}));
        else if (s->n)
            TRY(put(e, s->id));
    }
    return MPK_OK;
}
