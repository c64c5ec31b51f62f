/* tokenizer_unicode.c - tables of characters on which the Unicode libraries differ.
 *
 * The results to reproduce are those of the Python package tokenizers 0.23, which combines four
 * Unicode versions: regular expressions know version 16, Rust's standard library 17, its
 * normalisation about 10, its punctuation 8.  PCRE2 10.42 knows 14 and utf8proc 2.8 knows 15.
 * The tables hold the differences, found by asking both for every character; ranges may include
 * characters on which nothing depends.  Newer libraries here do no harm: the tables then repeat
 * them.
 */
#include "load/tokenizer_parts.h"

typedef struct range {
    uint32_t first, last;
} range;

/* Classes of newer characters, each with a character of 3 and one of 4 bytes that every PCRE2
 * knows. */
typedef enum class {
    CLASS_CF,
    CLASS_HAN,
    CLASS_LL,
    CLASS_LM,
    CLASS_LO,
    CLASS_LU,
    CLASS_MC,
    CLASS_MN,
    CLASS_ND,
    CLASS_NO,
    CLASS_PD,
    CLASS_PO,
    CLASS_SM,
    CLASS_SO
} class;

static const struct {
    uint32_t three, four;
} stand_ins[] = {
    [CLASS_CF] = {0, 0x110bd},     [CLASS_HAN] = {0, 0x20000},    [CLASS_LL] = {0x1d00, 0x1d41a},
    [CLASS_LM] = {0, 0x10780},     [CLASS_LO] = {0, 0x10000},     [CLASS_LU] = {0x2102, 0x1d400},
    [CLASS_MC] = {0x903, 0x11000}, [CLASS_MN] = {0x816, 0x101fd}, [CLASS_ND] = {0, 0x104a0},
    [CLASS_NO] = {0, 0x10107},     [CLASS_PD] = {0, 0x10ead},     [CLASS_PO] = {0x830, 0x10100},
    [CLASS_SM] = {0, 0x1d6c1},     [CLASS_SO] = {0x9fa, 0x10137},
};

typedef struct class_range {
    uint32_t first, last;
    class class;
} class_range;

/* Characters of Unicode 15 to 16, in rising order, for a binary search.  A text that holds one
 * is shown to PCRE2 with its class's stand-in of the same length in UTF-8. */
static const class_range newer[] = {
    {0x897, 0x897, CLASS_MN},      {0xcf3, 0xcf3, CLASS_MC},      {0xece, 0xece, CLASS_MN},
    {0x1b4e, 0x1b4f, CLASS_PO},    {0x1b7f, 0x1b7f, CLASS_PO},    {0x1c89, 0x1c89, CLASS_LU},
    {0x1c8a, 0x1c8a, CLASS_LL},    {0x2427, 0x2429, CLASS_SO},    {0x2ffc, 0x2fff, CLASS_SO},
    {0x31e4, 0x31e5, CLASS_SO},    {0x31ef, 0x31ef, CLASS_SO},    {0xa7cb, 0xa7cc, CLASS_LU},
    {0xa7cd, 0xa7cd, CLASS_LL},    {0xa7da, 0xa7da, CLASS_LU},    {0xa7db, 0xa7db, CLASS_LL},
    {0xa7dc, 0xa7dc, CLASS_LU},    {0x105c0, 0x105f3, CLASS_LO},  {0x10d40, 0x10d49, CLASS_ND},
    {0x10d4a, 0x10d4d, CLASS_LO},  {0x10d4e, 0x10d4e, CLASS_LM},  {0x10d4f, 0x10d4f, CLASS_LO},
    {0x10d50, 0x10d65, CLASS_LU},  {0x10d69, 0x10d6d, CLASS_MN},  {0x10d6e, 0x10d6e, CLASS_PD},
    {0x10d6f, 0x10d6f, CLASS_LM},  {0x10d70, 0x10d85, CLASS_LL},  {0x10d8e, 0x10d8f, CLASS_SM},
    {0x10ec2, 0x10ec4, CLASS_LO},  {0x10efc, 0x10eff, CLASS_MN},  {0x1123f, 0x11240, CLASS_LO},
    {0x11241, 0x11241, CLASS_MN},  {0x11380, 0x11389, CLASS_LO},  {0x1138b, 0x1138b, CLASS_LO},
    {0x1138e, 0x1138e, CLASS_LO},  {0x11390, 0x113b5, CLASS_LO},  {0x113b7, 0x113b7, CLASS_LO},
    {0x113b8, 0x113ba, CLASS_MC},  {0x113bb, 0x113c0, CLASS_MN},  {0x113c2, 0x113c2, CLASS_MC},
    {0x113c5, 0x113c5, CLASS_MC},  {0x113c7, 0x113ca, CLASS_MC},  {0x113cc, 0x113cd, CLASS_MC},
    {0x113ce, 0x113ce, CLASS_MN},  {0x113cf, 0x113cf, CLASS_MC},  {0x113d0, 0x113d0, CLASS_MN},
    {0x113d1, 0x113d1, CLASS_LO},  {0x113d2, 0x113d2, CLASS_MN},  {0x113d3, 0x113d3, CLASS_LO},
    {0x113d4, 0x113d5, CLASS_PO},  {0x113d7, 0x113d8, CLASS_PO},  {0x113e1, 0x113e2, CLASS_MN},
    {0x116d0, 0x116e3, CLASS_ND},  {0x1171e, 0x1171e, CLASS_MC},  {0x11b00, 0x11b09, CLASS_PO},
    {0x11bc0, 0x11be0, CLASS_LO},  {0x11be1, 0x11be1, CLASS_PO},  {0x11bf0, 0x11bf9, CLASS_ND},
    {0x11f00, 0x11f01, CLASS_MN},  {0x11f02, 0x11f02, CLASS_LO},  {0x11f03, 0x11f03, CLASS_MC},
    {0x11f04, 0x11f10, CLASS_LO},  {0x11f12, 0x11f33, CLASS_LO},  {0x11f34, 0x11f35, CLASS_MC},
    {0x11f36, 0x11f3a, CLASS_MN},  {0x11f3e, 0x11f3f, CLASS_MC},  {0x11f40, 0x11f40, CLASS_MN},
    {0x11f41, 0x11f41, CLASS_MC},  {0x11f42, 0x11f42, CLASS_MN},  {0x11f43, 0x11f4f, CLASS_PO},
    {0x11f50, 0x11f59, CLASS_ND},  {0x11f5a, 0x11f5a, CLASS_MN},  {0x1342f, 0x1342f, CLASS_LO},
    {0x13439, 0x1343f, CLASS_CF},  {0x13440, 0x13440, CLASS_MN},  {0x13441, 0x13446, CLASS_LO},
    {0x13447, 0x13455, CLASS_MN},  {0x13460, 0x143fa, CLASS_LO},  {0x16100, 0x1611d, CLASS_LO},
    {0x1611e, 0x16129, CLASS_MN},  {0x1612a, 0x1612c, CLASS_MC},  {0x1612d, 0x1612f, CLASS_MN},
    {0x16130, 0x16139, CLASS_ND},  {0x16d40, 0x16d42, CLASS_LM},  {0x16d43, 0x16d6a, CLASS_LO},
    {0x16d6b, 0x16d6c, CLASS_LM},  {0x16d6d, 0x16d6f, CLASS_PO},  {0x16d70, 0x16d79, CLASS_ND},
    {0x18cff, 0x18cff, CLASS_LO},  {0x1b132, 0x1b132, CLASS_LO},  {0x1b155, 0x1b155, CLASS_LO},
    {0x1cc00, 0x1ccef, CLASS_SO},  {0x1ccf0, 0x1ccf9, CLASS_ND},  {0x1cd00, 0x1ceb3, CLASS_SO},
    {0x1d2c0, 0x1d2d3, CLASS_NO},  {0x1df25, 0x1df2a, CLASS_LL},  {0x1e030, 0x1e06d, CLASS_LM},
    {0x1e08f, 0x1e08f, CLASS_MN},  {0x1e4d0, 0x1e4ea, CLASS_LO},  {0x1e4eb, 0x1e4eb, CLASS_LM},
    {0x1e4ec, 0x1e4ef, CLASS_MN},  {0x1e4f0, 0x1e4f9, CLASS_ND},  {0x1e5d0, 0x1e5ed, CLASS_LO},
    {0x1e5ee, 0x1e5ef, CLASS_MN},  {0x1e5f0, 0x1e5f0, CLASS_LO},  {0x1e5f1, 0x1e5fa, CLASS_ND},
    {0x1e5ff, 0x1e5ff, CLASS_PO},  {0x1f6dc, 0x1f6dc, CLASS_SO},  {0x1f774, 0x1f776, CLASS_SO},
    {0x1f77b, 0x1f77f, CLASS_SO},  {0x1f7d9, 0x1f7d9, CLASS_SO},  {0x1f8b2, 0x1f8bb, CLASS_SO},
    {0x1f8c0, 0x1f8c1, CLASS_SO},  {0x1fa75, 0x1fa77, CLASS_SO},  {0x1fa87, 0x1fa89, CLASS_SO},
    {0x1fa8f, 0x1fa8f, CLASS_SO},  {0x1faad, 0x1faaf, CLASS_SO},  {0x1fabb, 0x1fabf, CLASS_SO},
    {0x1fac6, 0x1fac6, CLASS_SO},  {0x1face, 0x1facf, CLASS_SO},  {0x1fada, 0x1fadc, CLASS_SO},
    {0x1fadf, 0x1fadf, CLASS_SO},  {0x1fae8, 0x1fae9, CLASS_SO},  {0x1faf7, 0x1faf8, CLASS_SO},
    {0x1fbcb, 0x1fbef, CLASS_SO},  {0x2b739, 0x2b739, CLASS_HAN}, {0x2ebf0, 0x2ee5d, CLASS_HAN},
    {0x31350, 0x323af, CLASS_HAN},
};

/* Marks, combining classes and decompositions that are newer than the normalisation tables. */
static const range inert[] = {
    {0x7fd, 0x7fd},     {0x898, 0x8d3},     {0x9fe, 0x9fe},     {0xafa, 0xaff},
    {0xb55, 0xb55},     {0xc04, 0xc3c},     {0xcf3, 0xd00},     {0xd3b, 0xd3c},
    {0xd81, 0xd81},     {0xeba, 0xeba},     {0xece, 0xece},     {0x1715, 0x1715},
    {0x180f, 0x180f},   {0x1abf, 0x1ace},   {0x1cf7, 0x1cf7},   {0x1df6, 0x1dfa},
    {0x32ff, 0x32ff},   {0xa7f2, 0xa7f4},   {0xa82c, 0xa82c},   {0xa8ff, 0xa8ff},
    {0xab69, 0xab69},   {0x10781, 0x107ba}, {0x10d24, 0x10f85}, {0x11070, 0x11074},
    {0x110c2, 0x110c2}, {0x11145, 0x11146}, {0x111c9, 0x111c9}, {0x111ce, 0x111cf},
    {0x11241, 0x11241}, {0x1133b, 0x1133b}, {0x1145e, 0x1145e}, {0x1182c, 0x11a99},
    {0x11d31, 0x11f42}, {0x13440, 0x13455}, {0x16f4f, 0x16f4f}, {0x16f7f, 0x16f87},
    {0x16fe4, 0x16ff1}, {0x1cf00, 0x1cf46}, {0x1e030, 0x1e4ef}, {0x1f16c, 0x1f16c},
    {0x1fbf0, 0x1fbf9},
};

/* Punctuation that is newer than the punctuation tables. */
static const range new_punctuation[] = {
    {0x61d, 0x61d},     {0x9fd, 0xa76},     {0xc77, 0xc84},     {0x1b7d, 0x1b7e},
    {0x2e43, 0x2e5d},   {0x10ead, 0x10f89}, {0x1144b, 0x1145d}, {0x11660, 0x116b9},
    {0x1183b, 0x11fff}, {0x12ff1, 0x12ff2}, {0x16e97, 0x16fe2}, {0x1e95e, 0x1e95f},
};

/* Numbers that are newer than utf8proc's tables. */
static const range new_numeric[] = {
    {0x10d40, 0x10d49}, {0x116d0, 0x116e3}, {0x11bf0, 0x11bf9},
    {0x11de0, 0x11de9}, {0x16130, 0x16139}, {0x16d70, 0x16d79},
    {0x16ff4, 0x16ff6}, {0x1ccf0, 0x1ccf9}, {0x1e5f1, 0x1e5fa},
};

/* Capitals that are newer than utf8proc's tables, and what to add for the small letter. */
static const struct {
    uint32_t first, last;
    int32_t add;
} new_lower[] = {
    {0x1c89, 0x1c89, 1},    {0xa7cb, 0xa7cb, 0x264 - 0xa7cb},
    {0xa7cc, 0xa7cc, 1},    {0xa7ce, 0xa7ce, 1},
    {0xa7d2, 0xa7d2, 1},    {0xa7d4, 0xa7d4, 1},
    {0xa7da, 0xa7da, 1},    {0xa7dc, 0xa7dc, 0x19b - 0xa7dc},
    {0x10d50, 0x10d65, 32}, {0x16ea0, 0x16eb8, 27},
};

#define COUNT(table) (sizeof(table) / sizeof *(table))

/* Binary search in rising ranges that do not overlap. */
static bool in_ranges(const range *table, size_t n, uint32_t c)
{
    size_t low = 0, high = n;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (c > table[middle].last)
            low = middle + 1;
        else
            high = middle;
    }
    return low < n && c >= table[low].first;
}

bool table_is_inert(uint32_t c)
{
    return in_ranges(inert, COUNT(inert), c);
}
bool table_is_new_punctuation(uint32_t c)
{
    return in_ranges(new_punctuation, COUNT(new_punctuation), c);
}
bool table_is_new_numeric(uint32_t c)
{
    return in_ranges(new_numeric, COUNT(new_numeric), c);
}

/* c itself if it is not in the table. */
uint32_t table_new_lower(uint32_t c)
{
    for (size_t i = 0; i < COUNT(new_lower); i++)
        if (c >= new_lower[i].first && c <= new_lower[i].last)
            return (uint32_t)((int32_t)c + new_lower[i].add);
    return c;
}

/* A character of the same class and length in UTF-8 that PCRE2 knows; c itself if PCRE2 knows
 * it. */
uint32_t char_stand_in(uint32_t c)
{
    size_t low = 0, high = COUNT(newer);
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (c > newer[middle].last)
            low = middle + 1;
        else
            high = middle;
    }
    if (low == COUNT(newer) || c < newer[low].first)
        return c;
    return c < 0x10000 ? stand_ins[newer[low].class].three : stand_ins[newer[low].class].four;
}
