/* jinja_text.c - characters of UTF-8 text: counting, cutting, searching, classes and case, as
 * Python's str has them.
 *
 * Classes and simple case come from utf8proc; what it does not know (case that changes the number
 * of characters, the final sigma, digits that are no decimals) is added here.
 *
 * Python's strings are arrays of code points; these are bytes.  So an index costs a pass
 * (jinja_offset), which callers charge.  memmem, memcmp and whole-byte comparison need no
 * decoding: in valid UTF-8 one character's bytes never begin inside another's. */
#include "jinja/jinja_parts.h"

#include <utf8proc.h>

/* The code point at `at` and its bytes.  All text of a run is valid UTF-8 (it is checked where it
 * comes in), so nothing is checked here. */
uint32_t jinja_char(const char *at, size_t *size)
{
    const unsigned char *p = (const unsigned char *)at;
    *size = str_char_bytes(*at);
    switch (*size) {
    case 1:
        return p[0];
    case 2:
        return (p[0] & 0x1fu) << 6 | (p[1] & 0x3fu);
    case 3:
        return (p[0] & 0x0fu) << 12 | (p[1] & 0x3fu) << 6 | (p[2] & 0x3fu);
    default:
        return (p[0] & 0x07u) << 18 | (p[1] & 0x3fu) << 12 | (p[2] & 0x3fu) << 6 | (p[3] & 0x3fu);
    }
}

/* As Python's repr writes a character that does not print: as many digits as it needs. */
const char *jinja_escape_of(uint32_t c)
{
    if (c < 0x100)
        return "\\x%02x";
    return c < 0x10000 ? "\\u%04x" : "\\U%08x";
}

/* Shortest forms only, no surrogates, nothing beyond U+10FFFF. */
bool jinja_is_valid(str s)
{
    for (size_t i = 0; i < s.n;) {
        utf8proc_int32_t c;
        utf8proc_ssize_t size =
            utf8proc_iterate((const utf8proc_uint8_t *)s.at + i, (utf8proc_ssize_t)(s.n - i), &c);
        if (size <= 0)
            return false;
        i += (size_t)size;
    }
    return true;
}

/* Bytes that do not continue a character. */
size_t jinja_chars(str s)
{
    size_t n = 0;
    for (size_t i = 0; i < s.n; i++)
        n += ((unsigned char)s.at[i] & 0xc0) != 0x80;
    return n;
}

/* The byte at which character i begins; the length of s if there are fewer. Linear: callers charge
 * for it. */
size_t jinja_offset(str s, size_t i)
{
    size_t at = 0;
    for (; at < s.n; at++)
        if (((unsigned char)s.at[at] & 0xc0) != 0x80 && i-- == 0)
            return at;
    return at;
}

/* Python's str.isspace, which has four control characters more than Unicode's White_Space. */
bool jinja_is_space(uint32_t c)
{
    return (c >= 9 && c <= 13) || (c >= 0x1c && c <= 0x20) || c == 0x85 || c == 0xa0 ||
           c == 0x1680 || (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 ||
           c == 0x202f || c == 0x205f || c == 0x3000;
}

/* Without an address `chars` means white space; an empty string means no character. */
static bool is_stripped(uint32_t c, str chars)
{
    if (!chars.at)
        return jinja_is_space(c);
    for (size_t i = 0, size; i < chars.n; i += size)
        if (jinja_char(chars.at + i, &size) == c)
            return true;
    return false;
}

/* From the right, a character begins at the first byte that does not continue one. */
str jinja_strip(str s, str chars, bool left, bool right)
{
    size_t size;
    while (left && s.n && is_stripped(jinja_char(s.at, &size), chars))
        s = (str){s.at + size, s.n - size};
    while (right && s.n) {
        size_t last = s.n - 1;
        while (((unsigned char)s.at[last] & 0xc0) == 0x80)
            last--;
        if (!is_stripped(jinja_char(s.at + last, &size), chars))
            break;
        s.n = last;
    }
    return s;
}

/* The empty text stands at 0. */
size_t jinja_find(str s, str what)
{
    if (!what.n)
        return 0;
    const char *at = s.n >= what.n ? memmem(s.at, s.n, what.at, what.n) : NULL;
    return at ? (size_t)(at - s.at) : SIZE_MAX;
}

/* By trying each place: what that costs is counted. */
mpk_status jinja_rfind(jrun *r, str s, str what, size_t *out)
{
    *out = SIZE_MAX;
    if (what.n > s.n)
        return MPK_OK;
    for (size_t i = s.n - what.n + 1; i-- > 0 && *out == SIZE_MAX;) {
        if (what.n && s.at[i] != what.at[0])
            continue;
        TRY(jinja_work(r, what.n));
        if (!what.n || memcmp(s.at + i, what.at, what.n) == 0)
            *out = i;
    }
    return MPK_OK;
}

/* ---- classes ---- */

static bool is_letter(uint32_t c)
{
    utf8proc_category_t k = utf8proc_category((utf8proc_int32_t)c);
    return k >= UTF8PROC_CATEGORY_LU && k <= UTF8PROC_CATEGORY_LO;
}

static bool is_decimal(uint32_t c)
{
    return utf8proc_category((utf8proc_int32_t)c) == UTF8PROC_CATEGORY_ND;
}

/* Unicode's digits that are no decimals: superscripts, circled ... */
static bool is_digit(uint32_t c)
{
    static const uint32_t ranges[][2] = {
        {0xb2, 0xb3},       {0xb9, 0xb9},       {0x1369, 0x1371},   {0x19da, 0x19da},
        {0x2070, 0x2070},   {0x2074, 0x2079},   {0x2080, 0x2089},   {0x2460, 0x2468},
        {0x2474, 0x247c},   {0x2488, 0x2490},   {0x24ea, 0x24ea},   {0x24f5, 0x24fd},
        {0x24ff, 0x24ff},   {0x2776, 0x277e},   {0x2780, 0x2788},   {0x278a, 0x2792},
        {0x10a40, 0x10a43}, {0x10e60, 0x10e68}, {0x11052, 0x1105a}, {0x1f100, 0x1f10a}};
    for (size_t i = 0; i < sizeof ranges / sizeof *ranges; i++)
        if (c >= ranges[i][0] && c <= ranges[i][1])
            return true;
    return is_decimal(c);
}

/* Han characters that are numbers. */
static bool is_numeric(uint32_t c)
{
    static const uint32_t han[] = {
        0x3405, 0x3483, 0x382a, 0x3b4d, 0x4e00, 0x4e03, 0x4e07, 0x4e09, 0x4e5d, 0x4e8c, 0x4e94,
        0x4e96, 0x4ebf, 0x4ec0, 0x4edf, 0x4ee8, 0x4f0d, 0x4f70, 0x5104, 0x5146, 0x5169, 0x516b,
        0x516d, 0x5341, 0x5343, 0x5344, 0x5345, 0x534c, 0x53c1, 0x53c2, 0x53c3, 0x53c4, 0x56db,
        0x58f1, 0x58f9, 0x5e7a, 0x5efe, 0x5eff, 0x5f0c, 0x5f0d, 0x5f0e, 0x5f10, 0x62fe, 0x634c,
        0x67d2, 0x6f06, 0x7396, 0x767e, 0x8086, 0x842c, 0x8cae, 0x8cb3, 0x8d30, 0x9621, 0x9646,
        0x964c, 0x9678, 0x96f6, 0xf96b, 0xf973, 0xf978, 0xf9b2, 0xf9d1, 0xf9d3, 0xf9fd};
    utf8proc_category_t k = utf8proc_category((utf8proc_int32_t)c);
    for (size_t i = 0; i < sizeof han / sizeof *han; i++)
        if (c == han[i])
            return true;
    return k == UTF8PROC_CATEGORY_ND || k == UTF8PROC_CATEGORY_NL || k == UTF8PROC_CATEGORY_NO;
}

/* Unicode's Uppercase: capital letters, and Roman numerals and circled letters, which are no
 * letters. */
static bool is_upper(uint32_t c)
{
    return utf8proc_category((utf8proc_int32_t)c) == UTF8PROC_CATEGORY_LU ||
           (c >= 0x2160 && c <= 0x216f) || (c >= 0x24b6 && c <= 0x24cf) ||
           (c >= 0x1f130 && c <= 0x1f149) || (c >= 0x1f150 && c <= 0x1f169) ||
           (c >= 0x1f170 && c <= 0x1f189);
}

/* Unicode's Lowercase: small letters, ordinal signs, modifier letters, small Roman numerals,
 * circled letters. */
static bool is_lower(uint32_t c)
{
    return utf8proc_category((utf8proc_int32_t)c) == UTF8PROC_CATEGORY_LL || c == 0xaa ||
           c == 0xba || (c >= 0x2b0 && c <= 0x2b8) || c == 0x2c0 || c == 0x2c1 ||
           (c >= 0x2e0 && c <= 0x2e4) || (c >= 0x2170 && c <= 0x217f) ||
           (c >= 0x24d0 && c <= 0x24e9);
}

/* Neither upper nor lower, as U+01C5: capital and small letter in one. */
static bool is_title(uint32_t c)
{
    return utf8proc_category((utf8proc_int32_t)c) == UTF8PROC_CATEGORY_LT;
}

/* The class of one character; the classes of case are is_cased's. */
static bool is_of(uint32_t c, jclass class)
{
    switch (class) {
    case J_ALPHA:
        return is_letter(c);
    case J_DIGIT:
        return is_digit(c);
    case J_DECIMAL:
        return is_decimal(c);
    case J_NUMERIC:
        return is_numeric(c);
    case J_ALNUM:
        return is_letter(c) || is_digit(c) || is_numeric(c);
    default:
        return jinja_is_space(c);
    }
}

/* Some character has case, and all that have are as they should be. */
static bool is_cased(str s, jclass class)
{
    bool found = false, inside = false;
    for (size_t i = 0, size; i < s.n; i += size) {
        uint32_t c = jinja_char(s.at + i, &size);
        bool upper = is_upper(c) || (class == J_IS_TITLE && is_title(c)), lower = is_lower(c);
        if (class == J_IS_TITLE && ((upper && inside) || (lower && !inside)))
            return false;
        if ((class == J_IS_UPPER && (lower || is_title(c))) ||
            (class == J_IS_LOWER && (upper || is_title(c))))
            return false;
        inside = upper || lower;
        found |= inside;
    }
    return found;
}

/* Python's isX: of all characters, and false for the empty string. */
bool jinja_is_class(str s, jclass class)
{
    if (class >= J_IS_UPPER)
        return is_cased(s, class);
    for (size_t i = 0, size; i < s.n; i += size)
        if (!is_of(jinja_char(s.at + i, &size), class))
            return false;
    return s.n > 0;
}

/* Python's str.isprintable: everything that Unicode assigns but separators, control and format
 * characters; the blank is printable. */
bool jinja_is_printable(uint32_t c)
{
    utf8proc_category_t k = utf8proc_category((utf8proc_int32_t)c);
    return c == ' ' ||
           (k != UTF8PROC_CATEGORY_CN && k != UTF8PROC_CATEGORY_CC && k != UTF8PROC_CATEGORY_CF &&
            k != UTF8PROC_CATEGORY_CS && k != UTF8PROC_CATEGORY_CO && k < UTF8PROC_CATEGORY_ZS);
}

/* ---- case ---- */

/* The table's rows rise by `from`. */
static const jcase_row *find_row(uint32_t c)
{
    size_t low = 0, high = jinja_n_case_rows;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (jinja_case_rows[middle].from < c)
            low = middle + 1;
        else
            high = middle;
    }
    return low < jinja_n_case_rows && jinja_case_rows[low].from == c ? &jinja_case_rows[low] : NULL;
}

/* Marks and the like do not end a word for the final sigma. */
static bool is_ignored(uint32_t c)
{
    utf8proc_category_t k = utf8proc_category((utf8proc_int32_t)c);
    return c == '\'' || c == '.' || c == ':' || c == '^' || c == '`' || c == 0xa8 || c == 0xad ||
           c == 0xaf || c == 0xb4 || c == 0xb7 || c == 0xb8 || c == 0x2018 || c == 0x2019 ||
           c == 0x2024 || c == 0x2027 || k == UTF8PROC_CATEGORY_MN || k == UTF8PROC_CATEGORY_ME ||
           k == UTF8PROC_CATEGORY_CF || k == UTF8PROC_CATEGORY_LM || k == UTF8PROC_CATEGORY_SK;
}

static bool has_case(uint32_t c)
{
    return is_upper(c) || is_lower(c) || is_title(c);
}

/* The sigma at byte i of s ends a word. Lower case of a final capital sigma is another letter than
 * within a word ("\u03a3" in "\u039f\u03a3"), by Unicode's rule Final_Sigma: a cased letter before
 * and none after, marks between not counted. */
static bool is_final_sigma(str s, size_t i)
{
    size_t size, at = i;
    bool before = false;
    while (at > 0) {
        do
            at--;
        while (((unsigned char)s.at[at] & 0xc0) == 0x80);
        uint32_t c = jinja_char(s.at + at, &size);
        if (is_ignored(c))
            continue;
        before = has_case(c);
        break;
    }
    for (at = i + 2; before && at < s.n; at += size) {
        uint32_t c = jinja_char(s.at + at, &size);
        if (!is_ignored(c))
            return !has_case(c);
    }
    return before;
}

/* Up to three characters as UTF-8; the bytes. */
static size_t put_several(char *to, const uint16_t c[3])
{
    size_t n = 0;
    for (int i = 0; i < 3 && c[i]; i++)
        n += str_put_char(to + n, c[i]);
    return n;
}

/* Upper case of c as UTF-8, of one or several characters; returns its bytes. */
static size_t put_upper(char *to, uint32_t c)
{
    const jcase_row *row = c < 0x80 ? NULL : find_row(c);
    return row ? put_several(to, row->upper)
               : str_put_char(to, (uint32_t)utf8proc_toupper((utf8proc_int32_t)c));
}

/* Title case: as upper, but for characters such as U+01C6, whose title case is U+01C5. */
static size_t put_title(char *to, uint32_t c)
{
    const jcase_row *row = c < 0x80 ? NULL : find_row(c);
    return row ? put_several(to, row->title)
               : str_put_char(to, (uint32_t)utf8proc_totitle((utf8proc_int32_t)c));
}

/* U+0130 becomes i and a combining dot; a capital sigma at the end of a word, a final one. */
static size_t put_lower(char *to, str s, size_t i, uint32_t c)
{
    static const uint16_t dotted[3] = {'i', 0x307};
    if (c == 0x130)
        return put_several(to, dotted);
    if (c == 0x3a3)
        return str_put_char(to, is_final_sigma(s, i) ? 0x3c2 : 0x3c3);
    return str_put_char(to, (uint32_t)utf8proc_tolower((utf8proc_int32_t)c));
}

/* Room for the longest result is taken first; what it did not need is given back to the text
 * arena. */
mpk_status jinja_set_case(jrun *r, str s, jcase to, str *out)
{
    char *p = NULL, *begin;
    bool inside = false;
    TRY(jinja_charge(r, s.n * 3));
    TRY(jinja_text_room(r, (str){0}, s.n * 3 + 16, &p)); /* the most: 2 bytes become 6 */
    begin = p;
    for (size_t i = 0, size; i < s.n; i += size) {
        uint32_t c = jinja_char(s.at + i, &size);
        if (to == J_UPPER || (to == J_SWAP && is_lower(c)))
            p += put_upper(p, c);
        else if ((to == J_CAPITAL && i == 0) || (to == J_TITLE && !inside))
            p += put_title(p, c);
        else if (to == J_SWAP && !is_upper(c))
            p += str_put_char(p, c);
        else
            p += put_lower(p, s, i, c);
        inside = has_case(c);
    }
    *out = (str){begin, (size_t)(p - begin)};
    r->room += (size_t)(s.n * 3 + 16 - out->n);
    r->tail = p;
    return MPK_OK;
}

/* ---- memory ---- */

/* Room for n bytes after a copy of `before`; *out is where `before` begins.  If `before` is what
 * was written last, it stays where it is and grows in place.  Otherwise it is copied, to a block
 * twice as large where it has grown before: appending n times costs O(n). */
mpk_status jinja_text_room(jrun *r, str before, size_t n, char **out)
{
    if (before.n > JINJA_MAX_OUTPUT || n > JINJA_MAX_OUTPUT - before.n)
        FAIL(r->cx, MPK_ELIMIT, "chat template, line %u: a text has more than %d bytes", r->line,
             JINJA_MAX_OUTPUT);
    const bool grows = before.n && before.at + before.n == r->tail;
    const size_t needed = grows ? n : before.n + n;
    if (needed > r->room || !r->tail) {
        size_t whole = before.n + n, size = whole * (grows ? 2 : 1) + 1;
        char *p;
        size = size < 4096 ? 4096 : size;
        TRY(jinja_charge(r, size));
        NEW(r->cx, r->a, p, size);
        r->tail = p;
        r->room = size;
    } else if (grows) {
        *out = r->tail - before.n;
        r->tail += n;
        r->room -= n;
        return MPK_OK;
    }
    *out = r->tail;
    if (before.n)
        memcpy(*out, before.at, before.n);
    r->tail += before.n + n;
    r->room -= before.n + n;
    return MPK_OK;
}

/* s in the run's memory. */
mpk_status jinja_copy(jrun *r, str s, str *out)
{
    char *p = NULL;
    TRY(jinja_text_room(r, (str){0}, s.n, &p));
    if (s.n)
        memcpy(p, s.at, s.n);
    *out = (str){p, s.n};
    return MPK_OK;
}
