/* tokenizer_text.c - UTF-8, Unicode normalisation, and the classes of characters that tokenizers
 * ask for.
 *
 * Normalisation is decomposition character by character (utf8proc's tables), a stable ordering of
 * each run of marks by counting (linear, where the usual insertion is quadratic on a long run),
 * then utf8proc's composition.
 *
 * Relies on utf8proc, and on tokenizer_unicode.c where its tables and those of the reference
 * differ. Called by all of tokenizer*.c; utf8_add_valid and utf8_end_valid also where text is
 * streamed. */
#include "load/tokenizer_parts.h"

#include <stdlib.h>

#include <utf8proc.h>

/* A text records a failed allocation; here it becomes a status. */
mpk_status text_check(mpk_context *cx, const text *t)
{
    CHECK(cx, !t->failed, MPK_ENOMEM, "out of memory for %zu bytes of text", t->n);
    return MPK_OK;
}

/* The text must be valid: nothing is checked. */
uint32_t utf8_get(const char *at)
{
    const unsigned char *p = (const unsigned char *)at;
    switch (utf8_length(at)) {
    case 1:
        return p[0];
    case 2:
        return (uint32_t)(p[0] & 0x1f) << 6 | (p[1] & 0x3f);
    case 3:
        return (uint32_t)(p[0] & 0x0f) << 12 | (uint32_t)(p[1] & 0x3f) << 6 | (p[2] & 0x3f);
    default:
        return (uint32_t)(p[0] & 0x07) << 18 | (uint32_t)(p[1] & 0x3f) << 12 |
               (uint32_t)(p[2] & 0x3f) << 6 | (p[3] & 0x3f);
    }
}

/* c is a code point, not a surrogate. */
void utf8_add(text *t, uint32_t c)
{
    utf8proc_uint8_t bytes[4];
    utf8proc_ssize_t n = utf8proc_encode_char((utf8proc_int32_t)c, bytes);
    text_add(t, (const char *)bytes, (size_t)n);
}

/* May c be byte number n (1 to 3) of a character that begins with at?  (Unicode 16, table 3-7.) */
static bool continues(const unsigned char *at, unsigned n, unsigned char c)
{
    unsigned char low = 0x80, high = 0xbf;
    if (n == 1 && at[0] == 0xe0)
        low = 0xa0;
    if (n == 1 && at[0] == 0xf0)
        low = 0x90;
    if (n == 1 && at[0] == 0xed)
        high = 0x9f;
    if (n == 1 && at[0] == 0xf4)
        high = 0x8f;
    return c >= low && c <= high;
}

/* Shortest forms only; the second byte decides about surrogates and the upper end (continues). */
bool utf8_is_valid(str s)
{
    for (size_t i = 0; i < s.n;) {
        const unsigned char *at = (const unsigned char *)s.at + i;
        size_t n = utf8_length(s.at + i);
        if ((at[0] >= 0x80 && at[0] < 0xc2) || at[0] > 0xf4 || n > s.n - i)
            return false;
        for (unsigned k = 1; k < n; k++)
            if (!continues(at, k, at[k]))
                return false;
        i += n;
    }
    return true;
}

static const char replacement[] = "\xef\xbf\xbd";

/* A character that has begun but not ended is one replacement, however many bytes it has. */
void utf8_end_valid(text *t, utf8_rest *rest)
{
    if (rest->n)
        text_add(t, replacement, 3);
    rest->n = 0;
}

/* Take one byte that is not within a run of ASCII. C0, C1 and F5 to FF never begin a character. A
 * byte that cannot continue the one that has begun ends it with U+FFFD, and is then looked at by
 * itself. */
static void add_byte(text *t, utf8_rest *rest, unsigned char c)
{
    if (rest->n) {
        if (continues(rest->at, rest->n, c)) {
            rest->at[rest->n++] = c;
            if (rest->n == utf8_length((const char *)rest->at)) {
                text_add(t, (const char *)rest->at, rest->n);
                rest->n = 0;
            }
            return;
        }
        utf8_end_valid(t, rest);
    }
    if (c < 0x80)
        text_add(t, (const char *)&c, 1);
    else if (c >= 0xc2 && c <= 0xf4)
        rest->at[rest->n++] = c;
    else
        text_add(t, replacement, 3);
}

/* Add bytes as valid UTF-8, with U+FFFD for what is none.  A character may be cut between two
 * calls; `rest` keeps its beginning.  Runs of ASCII are added whole. */
void utf8_add_valid(text *t, utf8_rest *rest, const char *bytes, size_t n)
{
    for (size_t i = 0; i < n;) {
        size_t run = i;
        while (!rest->n && run < n && (unsigned char)bytes[run] < 0x80)
            run++;
        if (run > i)
            text_add(t, bytes + i, run - i);
        i = run;
        if (i < n)
            add_byte(t, rest, (unsigned char)bytes[i++]);
    }
}

/* The characters with the property White_Space, spelled out: utf8proc has no table of it. */
bool char_is_space(uint32_t c)
{
    if (c < 0x80)
        return c == ' ' || (c >= 9 && c <= 13);
    return c == 0x85 || c == 0xa0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200a) || c == 0x2028 ||
           c == 0x2029 || c == 0x202f || c == 0x205f || c == 0x3000;
}

/* The general category: letter, mark, number... */
static utf8proc_category_t category(uint32_t c)
{
    return utf8proc_category((utf8proc_int32_t)c);
}

/* The general categories N*, with those that the Unicode of the reference tokenizers has and
 * utf8proc's has not. */
bool char_is_numeric(uint32_t c)
{
    utf8proc_category_t k = category(c);
    return k == UTF8PROC_CATEGORY_ND || k == UTF8PROC_CATEGORY_NL || k == UTF8PROC_CATEGORY_NO ||
           table_is_new_numeric(c);
}

/* ASCII punctuation includes what Unicode calls symbols ($, +, <), as BERT counts them. */
bool char_is_punctuation(uint32_t c)
{
    if (c < 0x80)
        return c > ' ' && c < 0x7f &&
               !((c >= '0' && c <= '9') || ((c | 32) >= 'a' && (c | 32) <= 'z'));
    if (c == 0x166d || c == 0x111c9) /* punctuation once */
        return true;
    utf8proc_category_t k = category(c);
    return k >= UTF8PROC_CATEGORY_PC && k <= UTF8PROC_CATEGORY_PO && !table_is_new_punctuation(c);
}

/* The first such character is U+07FD. */
bool char_is_inert(uint32_t c)
{
    return c >= 0x7fd && table_is_inert(c);
}

/* The general categories Mn, Mc and Me, as the Unicode of the reference tokenizers has them. */
bool char_is_mark(uint32_t c)
{
    if (c == 0x1cf2 || c == 0x1cf3) /* marks once */
        return true;
    utf8proc_category_t k = category(c);
    return k >= UTF8PROC_CATEGORY_MN && k <= UTF8PROC_CATEGORY_ME && !char_is_inert(c);
}

/* *second is 0, or the second character of the lower case. */
uint32_t char_lower(uint32_t c, uint32_t *second)
{
    *second = 0;
    if (c == 0x130) {
        *second = 0x307;
        return 'i';
    }
    uint32_t lower = (uint32_t)utf8proc_tolower((utf8proc_int32_t)c);
    return lower == c && c >= 0x1c89 ? table_new_lower(c) : lower;
}

/* GPT-2 keeps the printable bytes and gives the others, in order, the characters from U+0100 on. */
static bool is_kept(unsigned c)
{
    return (c >= '!' && c <= '~') || (c >= 0xa1 && c <= 0xac) || c >= 0xae;
}

/* GPT-2's table: 0x20 (space) is U+0120, shown as a G with a dot. */
uint32_t byte_to_char(unsigned char byte)
{
    if (is_kept(byte))
        return byte;
    if (byte <= ' ')
        return 0x100u + byte;
    return byte <= 0xa0 ? 0x100u + 33 + (byte - 0x7fu) : 0x143;
}

/* The inverse of byte_to_char, -1 for a character that stands for no byte.  GPT-2 shows the bytes
 * that have no printable character as U+0100 and up, in order. */
int byte_from_char(uint32_t c)
{
    if (c < 0x100)
        return is_kept(c) ? (int)c : -1;
    if (c > 0x143)
        return -1;
    if (c <= 0x120)
        return (int)(c - 0x100);
    return c < 0x143 ? (int)(c - 0x100 - 33 + 0x7f) : 0xad;
}

/* --- normalisation --- */

/* Characters of a text while it is normalised; on the heap. */
typedef struct char_list {
    int32_t *at;
    size_t n, capacity;
} char_list;

/* false: out of memory; the list is as before. */
static bool list_reserve(char_list *l, size_t n)
{
    if (l->n + n <= l->capacity)
        return true;
    size_t capacity = (l->n + n) * 2;
    int32_t *at = realloc(l->at, capacity * sizeof *at);
    if (!at)
        return false;
    l->at = at;
    l->capacity = capacity;
    return true;
}

enum { LONGEST_DECOMPOSITION = 32 };

/* Characters below U+00A0 have no decomposition, and ASCII is most of all text. A decomposition has
 * 18 characters at most; LONGEST_DECOMPOSITION leaves room. */
static bool decompose(char_list *l, str in, bool compatible)
{
    int options = UTF8PROC_DECOMPOSE | UTF8PROC_STABLE | (compatible ? UTF8PROC_COMPAT : 0);
    for (size_t i = 0; i < in.n; i += utf8_length(in.at + i)) {
        if (!list_reserve(l, LONGEST_DECOMPOSITION))
            return false;
        uint32_t c = utf8_get(in.at + i);
        int boundary = 0;
        if (c < 0xa0 || char_is_inert(c)) {
            l->at[l->n++] = (int32_t)c;
            continue;
        }
        utf8proc_ssize_t n = utf8proc_decompose_char(
            (int32_t)c, l->at + l->n, LONGEST_DECOMPOSITION, (utf8proc_option_t)options, &boundary);
        if (n > 0 && n <= LONGEST_DECOMPOSITION)
            l->n += (size_t)n;
    }
    return true;
}

/* 0 for characters that begin a run. */
static unsigned combining_class(int32_t c)
{
    if (c < 0x300 || char_is_inert((uint32_t)c))
        return 0;
    return utf8proc_get_property(c)->combining_class & 0xff;
}

/* Order n marks by their class, equal ones as they were; spare has room for n. */
static void order_run(int32_t *run, size_t n, int32_t *spare)
{
    size_t next[257] = {0};
    for (size_t i = 0; i < n; i++)
        next[combining_class(run[i]) + 1]++;
    for (size_t k = 1; k < 257; k++)
        next[k] += next[k - 1];
    for (size_t i = 0; i < n; i++)
        spare[next[combining_class(run[i])]++] = run[i];
    memcpy(run, spare, n * sizeof *run);
}

/* Marks after a base character are ordered by class, each run by itself. */
static bool order_marks(char_list *l)
{
    int32_t *spare = NULL;
    for (size_t i = 0; i < l->n;) {
        size_t end = i;
        while (end < l->n && combining_class(l->at[end]))
            end++;
        if (end > i + 1) {
            if (!spare && !(spare = malloc(l->n * sizeof *spare)))
                return false;
            order_run(l->at + i, end - i, spare);
        }
        i = end > i ? end : i + 1;
    }
    free(spare);
    return true;
}

/* utf8proc composes; it must not see the inert characters, so it gets the text between them. */
static void compose(char_list *l)
{
    size_t to = 0;
    for (size_t i = 0; i < l->n;) {
        size_t end = i;
        while (end < l->n && !char_is_inert((uint32_t)l->at[end]))
            end++;
        utf8proc_ssize_t n = utf8proc_normalize_utf32(l->at + i, (utf8proc_ssize_t)(end - i),
                                                      UTF8PROC_COMPOSE | UTF8PROC_STABLE);
        memmove(l->at + to, l->at + i, (size_t)(n > 0 ? n : 0) * sizeof *l->at);
        to += (size_t)(n > 0 ? n : 0);
        if (end < l->n)
            l->at[to++] = l->at[end++];
        i = end;
    }
    l->n = to;
}

/* Most texts are; they skip two passes and an allocation. */
static bool is_ascii(str s)
{
    for (size_t i = 0; i < s.n; i++)
        if ((unsigned char)s.at[i] >= 0x80)
            return false;
    return true;
}

/* ASCII is its own normal form in all four. */
mpk_status normalize_unicode(mpk_context *cx, normal_form form, str in, text *out)
{
    if (is_ascii(in)) {
        text_add(out, in.at, in.n);
        return text_check(cx, out);
    }
    char_list l = {0};
    bool ok = decompose(&l, in, form == NORMAL_NFKC || form == NORMAL_NFKD) && order_marks(&l);
    if (ok && (form == NORMAL_NFC || form == NORMAL_NFKC))
        compose(&l);
    for (size_t i = 0; ok && i < l.n; i++)
        utf8_add(out, (uint32_t)l.at[i]);
    free(l.at);
    CHECK(cx, ok, MPK_ENOMEM, "out of memory to normalise %zu bytes", in.n);
    return text_check(cx, out);
}
