/* jinja_str_methods.c - methods of str: splitting, searching, changing, classes of characters.
 *
 * jinja_str_methods names all that Python's str has (see jinja_methods.c, which looks methods up);
 * what is not computed here is refused when it is called.  A text that is marked safe gives texts
 * that are marked safe.
 *
 * Conventions: texts are UTF-8 and places are counted in characters, so most methods turn them to
 * bytes once (search_range); results are slices of the subject where they can be; work is charged
 * before it is done. */
#include "jinja/jinja_parts.h"

/* A text as a value of the same kind as the one it came from. */
static mpk_status give(jval self, str s, jval *out)
{
    *out = jinja_str(s);
    out->markup = self.markup;
    return MPK_OK;
}

/* Parts of a text that is marked safe are marked safe. */
static void mark_all(jval self, jlist *parts)
{
    for (size_t i = 0; i < parts->n; i++)
        parts->at[i].markup = self.markup;
}

/* ---- splitting and joining ---- */

static mpk_status push_part(jrun *r, jlist *l, str s)
{
    return jinja_push(r, l, jinja_str(s));
}

/* Parts that were cut from the right came in reverse order. */
static void reverse(jlist *l)
{
    for (size_t i = 0; i < l->n / 2; i++) {
        jval v = l->at[i];
        l->at[i] = l->at[l->n - 1 - i];
        l->at[l->n - 1 - i] = v;
    }
}

/* The first run of what is not white space (from the left or right); s is what is left after it.
 * White space is Unicode's, so a step is a character and not a byte; from the right its first byte
 * is looked for. */
static str take_word(str *s, bool from_right)
{
    size_t size, at;
    *s = jinja_strip(*s, (str){0}, !from_right, from_right);
    str word = *s;
    if (from_right) {
        for (at = s->n; at > 0;) {
            size_t last = at - 1;
            while (((unsigned char)s->at[last] & 0xc0) == 0x80)
                last--;
            if (jinja_is_space(jinja_char(s->at + last, &size)))
                break;
            at = last;
        }
        s->n = at;
        return (str){word.at + at, word.n - at};
    }
    for (at = 0; at < s->n && !jinja_is_space(jinja_char(s->at + at, &size)); at += size)
        ;
    *s = (str){s->at + at, s->n - at};
    return (str){word.at, at};
}

/* Without a separator: at runs of white space, and no empty words. */
static mpk_status split_words(jrun *r, str s, int64_t most, bool from_right, jlist *out)
{
    for (int64_t i = 0;; i++) {
        str rest = jinja_strip(s, (str){0}, !from_right, from_right);
        if (!rest.n)
            return MPK_OK;
        if (most >= 0 && i == most)
            return push_part(r, out, rest);
        TRY(push_part(r, out, take_word(&s, from_right)));
    }
}

/* With a separator: n of it give n + 1 parts, which may be empty.  From the right the parts come in
 * reverse, and the caller turns them round. */
static mpk_status split_at(jrun *r, str s, str sep, int64_t most, bool from_right, jlist *out)
{
    for (int64_t i = 0; most < 0 || i < most; i++) {
        size_t at = SIZE_MAX;
        if (from_right)
            TRY(jinja_rfind(r, s, sep, &at));
        else
            at = jinja_find(s, sep);
        if (at == SIZE_MAX)
            break;
        str left = {s.at, at}, right = {s.at + at + sep.n, s.n - at - sep.n};
        TRY(push_part(r, out, from_right ? right : left));
        s = from_right ? left : right;
    }
    return push_part(r, out, s);
}

/* "a  b".split() is ["a", "b"], "a  b".split(" ") is ["a", "", "b"]: without a separator runs of
 * white space count as one. most < 0: no limit. */
mpk_status jinja_str_split(jrun *r, str s, jval sep, int64_t most, bool from_right, jval *out)
{
    TRY(jinja_charge(r, s.n));
    TRY(jinja_make_list(r, J_LIST, 0, out));
    if (sep.kind == J_ABSENT || sep.kind == J_NONE)
        TRY(split_words(r, s, most, from_right, out->list));
    else {
        str at = {0};
        TRY(jinja_need_str(r, sep, "split", &at));
        if (!at.n)
            return jinja_fail(r, "split: the separator is empty");
        TRY(split_at(r, s, at, most, from_right, out->list));
    }
    if (from_right)
        reverse(out->list);
    return MPK_OK;
}

/* split and rsplit: maxsplit below 0, or left out, means no limit. */
static mpk_status split_method(jrun *r, jval self, const jargs *args, bool from_right, jval *out)
{
    jval a[2];
    int64_t most = -1;
    TRY(jinja_bind(r, "split", args, "sep maxsplit", 0, a));
    if (a[1].kind != J_ABSENT)
        TRY(jinja_need_int(r, a[1], "split", &most));
    TRY(jinja_str_split(r, self.text, a[0], most, from_right, out));
    mark_all(self, out->list);
    return MPK_OK;
}

static mpk_status str_split(jrun *r, jval self, const jargs *args, jval *out)
{
    return split_method(r, self, args, false, out);
}

static mpk_status str_rsplit(jrun *r, jval self, const jargs *args, jval *out)
{
    return split_method(r, self, args, true, out);
}

/* The bytes of the end of a line at the start of s, 0 if there is none. */
static size_t line_break(str s)
{
    size_t size;
    uint32_t c = jinja_char(s.at, &size);
    if (c == '\r' && s.n > 1 && s.at[1] == '\n')
        return 2;
    return (c >= 10 && c <= 13) || (c >= 0x1c && c <= 0x1e) || c == 0x85 || c == 0x2028 ||
                   c == 0x2029
               ? size
               : 0;
}

/* At all of Python's line ends, CR LF being one; a last line without an end counts, an empty one
 * does not. */
mpk_status jinja_splitlines(jrun *r, str s, bool keep, jval *out)
{
    TRY(jinja_charge(r, s.n));
    TRY(jinja_make_list(r, J_LIST, 0, out));
    while (s.n) {
        size_t n = 0, end = 0, size;
        while (n < s.n && !(end = line_break((str){s.at + n, s.n - n}))) {
            jinja_char(s.at + n, &size);
            n += size;
        }
        TRY(push_part(r, out->list, (str){s.at, n + (keep ? end : 0)}));
        s = (str){s.at + n + end, s.n - n - end};
    }
    return MPK_OK;
}

/* Parts of a text that is marked safe are safe, too. */
static mpk_status str_splitlines(jrun *r, jval self, const jargs *args, jval *out)
{
    jval keep;
    TRY(jinja_bind(r, "splitlines", args, "keepends", 0, &keep));
    TRY(jinja_splitlines(r, self.text, jinja_true(keep), out));
    mark_all(self, out->list);
    return MPK_OK;
}

/* Always three parts; where the separator is not found, the whole is the first (or, from the right,
 * the last). "a-b-c".partition("-") is ("a", "-", "b-c"), rpartition ("a-b", "-", "c"). */
static mpk_status partition_at(jrun *r, jval self, const jargs *args, bool last, jval *out)
{
    jval sep;
    str at = {0};
    TRY(jinja_bind(r, "partition", args, "/sep", 1, &sep));
    TRY(jinja_need_str(r, sep, "partition", &at));
    if (!at.n)
        return jinja_fail(r, "partition: the separator is empty");
    TRY(jinja_charge(r, self.text.n));
    size_t i = jinja_find(self.text, at);
    if (last)
        TRY(jinja_rfind(r, self.text, at, &i));
    const str s = self.text, none = {s.at, 0};
    TRY(jinja_make_list(r, J_TUPLE, 3, out));
    str before = last ? none : s;
    str after = last ? s : none;
    if (i != SIZE_MAX) {
        before = (str){s.at, i};
        after = (str){s.at + i + at.n, s.n - i - at.n};
    }
    TRY(push_part(r, out->list, before));
    TRY(push_part(r, out->list, i == SIZE_MAX ? none : at));
    TRY(push_part(r, out->list, after));
    mark_all(self, out->list);
    return MPK_OK;
}

static mpk_status str_partition(jrun *r, jval self, const jargs *args, jval *out)
{
    return partition_at(r, self, args, false, out);
}

static mpk_status str_rpartition(jrun *r, jval self, const jargs *args, jval *out)
{
    return partition_at(r, self, args, true, out);
}

/* The method accepts only strings, where the filter converts. ", ".join(list) as in Python. */
static mpk_status str_join(jrun *r, jval self, const jargs *args, jval *out)
{
    jval over, item;
    jiterator *it;
    TRY(jinja_bind(r, "join", args, "/iterable", 1, &over));
    if (self.markup)
        return jinja_refuse(r, "join of a text that is marked safe is not supported");
    TRY(jinja_iterate(r, over, &it));
    *out = jinja_str(STR(""));
    for (bool first = true;; first = false) {
        TRY(jinja_next(r, it, &item));
        if (item.kind == J_ABSENT)
            return MPK_OK;
        if (item.kind != J_STR)
            return jinja_fail(r, "join: %s is not a string", jinja_type_name(item));
        item.markup = false;
        if (!first)
            TRY(jinja_binary(r, '+', *out, self, out));
        TRY(jinja_binary(r, '+', *out, item, out));
    }
}

/* ---- searching ---- */

/* An index that counts from the end if it is negative; 0: it is before the beginning. */
static int64_t from_end(int64_t i, int64_t length)
{
    if (i >= 0)
        return i;
    return i < -length ? 0 : i + length;
}

/* The part of s that start and end mean (in characters), false if start lies after it. *skipped:
 * characters before the part, so that `find` can give a place in the whole text. */
static mpk_status search_range(jrun *r, str s, jval start, jval end, const char *what, str *out,
                               int64_t *skipped, bool *valid)
{
    int64_t from = 0, to = INT64_MAX, length = 0;
    TRY(jinja_charge(r, s.n));
    *out = s;
    *skipped = 0;
    *valid = true;
    if (start.kind <= J_NONE && end.kind <= J_NONE)
        return MPK_OK;
    length = (int64_t)jinja_chars(s);
    if (start.kind > J_NONE)
        TRY(jinja_need_int(r, start, what, &from));
    if (end.kind > J_NONE)
        TRY(jinja_need_int(r, end, what, &to));
    from = from_end(from, length);
    to = from_end(to, length);
    if (to > length)
        to = length;
    *valid = from <= to && from <= length;
    if (!*valid)
        return MPK_OK;
    size_t begin = jinja_offset(s, (size_t)from);
    *out = (str){s.at + begin, jinja_offset(s, (size_t)to) - begin};
    *skipped = from;
    return MPK_OK;
}

/* Places are counted in characters, from the start of the whole string, whatever range is
 * searched. */
static mpk_status find_method(jrun *r, jval self, const jargs *args, bool last, int64_t *out)
{
    jval a[3];
    str what = {0}, in = {0};
    int64_t skipped = 0;
    bool valid;
    TRY(jinja_bind(r, "find", args, "/sub start end", 1, a));
    TRY(jinja_need_str(r, a[0], "find", &what));
    TRY(search_range(r, self.text, a[1], a[2], "find", &in, &skipped, &valid));
    size_t at = valid && !last ? jinja_find(in, what) : SIZE_MAX;
    if (valid && last)
        TRY(jinja_rfind(r, in, what, &at));
    *out = at == SIZE_MAX ? -1 : skipped + (int64_t)jinja_chars((str){in.at, at});
    return MPK_OK;
}

static mpk_status str_find(jrun *r, jval self, const jargs *args, jval *out)
{
    *out = jinja_int(0);
    return find_method(r, self, args, false, &out->integer);
}

static mpk_status str_rfind(jrun *r, jval self, const jargs *args, jval *out)
{
    *out = jinja_int(0);
    return find_method(r, self, args, true, &out->integer);
}

/* find that fails where it finds nothing. */
static mpk_status str_index(jrun *r, jval self, const jargs *args, jval *out)
{
    TRY(str_find(r, self, args, out));
    return out->integer < 0 ? jinja_fail(r, "index: the text is not found") : MPK_OK;
}

static mpk_status str_rindex(jrun *r, jval self, const jargs *args, jval *out)
{
    TRY(str_rfind(r, self, args, out));
    return out->integer < 0 ? jinja_fail(r, "rindex: the text is not found") : MPK_OK;
}

/* Without overlaps.  The empty string is found between all characters and at both ends. */
static mpk_status str_count(jrun *r, jval self, const jargs *args, jval *out)
{
    jval a[3];
    str what = {0}, in = {0};
    int64_t skipped = 0, n = 0;
    bool valid;
    TRY(jinja_bind(r, "count", args, "/sub start end", 1, a));
    TRY(jinja_need_str(r, a[0], "count", &what));
    TRY(search_range(r, self.text, a[1], a[2], "count", &in, &skipped, &valid));
    if (valid && !what.n)
        n = (int64_t)jinja_chars(in) + 1;
    for (size_t at; valid && what.n && (at = jinja_find(in, what)) != SIZE_MAX; n++)
        in = (str){in.at + at + what.n, in.n - at - what.n};
    *out = jinja_int(n);
    return MPK_OK;
}

/* Does s begin, or end, with `what`? */
static bool begins_or_ends(str s, str what, bool ends)
{
    return what.n <= s.n &&
           (!what.n || memcmp(s.at + (ends ? s.n - what.n : 0), what.at, what.n) == 0);
}

/* A tuple of affixes asks for any of them. "abc".startswith(("x", "a")) is true. */
static mpk_status affix_method(jrun *r, jval self, const jargs *args, bool ends, jval *out)
{
    const char *name = ends ? "endswith" : "startswith";
    jval a[3];
    str what = {0}, in = {0};
    int64_t skipped = 0;
    bool valid, found = false;
    TRY(jinja_bind(r, name, args, "/affix start end", 1, a));
    TRY(search_range(r, self.text, a[1], a[2], name, &in, &skipped, &valid));
    const bool several = a[0].kind == J_TUPLE;
    const jval *at = several ? a[0].list->at : a;
    for (size_t i = 0; i < (several ? a[0].list->n : 1) && !found; i++) {
        TRY(jinja_charge(r, 1));
        TRY(jinja_need_str(r, at[i], name, &what));
        TRY(jinja_work(r, what.n));
        found = valid && begins_or_ends(in, what, ends);
    }
    *out = jinja_bool(found);
    return MPK_OK;
}

static mpk_status str_startswith(jrun *r, jval self, const jargs *args, jval *out)
{
    return affix_method(r, self, args, false, out);
}

static mpk_status str_endswith(jrun *r, jval self, const jargs *args, jval *out)
{
    return affix_method(r, self, args, true, out);
}

/* ---- changing ---- */

/* An empty `chars` strips nothing, none strips white space: see filter_trim. */
static mpk_status strip_method(jrun *r, jval self, const jargs *args, bool left, bool right,
                               jval *out)
{
    jval chars;
    str set = {0};
    TRY(jinja_bind(r, "strip", args, "/chars", 0, &chars));
    if (chars.kind > J_NONE) {
        TRY(jinja_need_str(r, chars, "strip", &set));
        set = set.n ? set : STR("");
    } else if (chars.kind == J_UNDEFINED)
        return jinja_fail_undefined(r, chars);
    TRY(jinja_work(r, self.text.n * (uint64_t)(set.n + 1)));
    return give(self, jinja_strip(self.text, set, left, right), out);
}

static mpk_status str_strip(jrun *r, jval self, const jargs *args, jval *out)
{
    return strip_method(r, self, args, true, true, out);
}

static mpk_status str_lstrip(jrun *r, jval self, const jargs *args, jval *out)
{
    return strip_method(r, self, args, true, false, out);
}

static mpk_status str_rstrip(jrun *r, jval self, const jargs *args, jval *out)
{
    return strip_method(r, self, args, false, true, out);
}

/* removeprefix and removesuffix: at most once. */
static mpk_status cut_affix(jrun *r, jval self, const jargs *args, bool ends, jval *out)
{
    jval a;
    str what = {0}, s = self.text;
    TRY(jinja_bind(r, "remove", args, "/affix", 1, &a));
    TRY(jinja_need_str(r, a, "remove", &what));
    TRY(jinja_work(r, what.n));
    if (begins_or_ends(s, what, ends))
        s = (str){s.at + (ends ? 0 : what.n), s.n - what.n};
    return give(self, s, out);
}

static mpk_status str_removeprefix(jrun *r, jval self, const jargs *args, jval *out)
{
    return cut_affix(r, self, args, false, out);
}

static mpk_status str_removesuffix(jrun *r, jval self, const jargs *args, jval *out)
{
    return cut_affix(r, self, args, true, out);
}

/* *to and more in one text, in place if *to was written last (jinja_text_room). */
static mpk_status append(jrun *r, str *to, str more)
{
    jval joined;
    TRY(jinja_binary(r, '+', jinja_str(*to), jinja_str(more), &joined));
    *to = joined.text;
    return MPK_OK;
}

/* An empty `from` stands before every character and at the end. */
static mpk_status replace_nothing(jrun *r, str s, str to, int64_t most, str *out)
{
    size_t at = 0, size;
    for (int64_t i = 0; at <= s.n && (most < 0 || i < most); i++) {
        TRY(append(r, out, to));
        if (at == s.n)
            return MPK_OK;
        jinja_char(s.at + at, &size);
        TRY(append(r, out, (str){s.at + at, size}));
        at += size;
    }
    return append(r, out, (str){s.at + at, s.n - at});
}

/* `most` below 0: all.  An empty `from` matches between all characters. The text that replaces is
 * not searched again. */
mpk_status jinja_str_replace(jrun *r, str s, str from, str to, int64_t most, str *out)
{
    *out = STR("");
    TRY(jinja_charge(r, s.n));
    if (!from.n)
        return replace_nothing(r, s, to, most, out);
    size_t at = jinja_find(s, from);
    if (at == SIZE_MAX || most == 0) {
        *out = s;
        return MPK_OK;
    }
    for (int64_t i = 0; at != SIZE_MAX && (most < 0 || i < most); i++) {
        TRY(append(r, out, (str){s.at, at}));
        TRY(append(r, out, to));
        s = (str){s.at + at + from.n, s.n - at - from.n};
        at = jinja_find(s, from);
    }
    return append(r, out, s);
}

/* Marked-safe text would have to escape `new`; it is refused. */
static mpk_status str_replace(jrun *r, jval self, const jargs *args, jval *out)
{
    jval a[3];
    str from = {0}, to = {0}, s = {0};
    int64_t most = -1;
    TRY(jinja_bind(r, "replace", args, "/old new count", 2, a));
    TRY(jinja_need_str(r, a[0], "replace", &from));
    TRY(jinja_need_str(r, a[1], "replace", &to));
    if (a[2].kind != J_ABSENT)
        TRY(jinja_need_int(r, a[2], "replace", &most));
    if (self.markup)
        return jinja_refuse(r, "replace of a text that is marked safe is not supported");
    TRY(jinja_str_replace(r, self.text, from, to, most, &s));
    return give(self, s, out);
}

/* upper, lower and so on: `to` says which. */
static mpk_status case_method(jrun *r, jval self, const jargs *args, jcase to, jval *out)
{
    str s = {0};
    TRY(jinja_bind(r, "this method", args, "", 0, NULL));
    TRY(jinja_set_case(r, self.text, to, &s));
    return give(self, s, out);
}

static mpk_status str_upper(jrun *r, jval self, const jargs *args, jval *out)
{
    return case_method(r, self, args, J_UPPER, out);
}

static mpk_status str_lower(jrun *r, jval self, const jargs *args, jval *out)
{
    return case_method(r, self, args, J_LOWER, out);
}

static mpk_status str_title(jrun *r, jval self, const jargs *args, jval *out)
{
    return case_method(r, self, args, J_TITLE, out);
}

static mpk_status str_capitalize(jrun *r, jval self, const jargs *args, jval *out)
{
    return case_method(r, self, args, J_CAPITAL, out);
}

static mpk_status str_swapcase(jrun *r, jval self, const jargs *args, jval *out)
{
    return case_method(r, self, args, J_SWAP, out);
}

/* left and right times fill around s. */
static mpk_status pad(jrun *r, str s, int64_t left, int64_t right, str fill, str *out)
{
    jval before, after;
    TRY(jinja_binary(r, '*', jinja_str(fill), jinja_int(left), &before));
    TRY(jinja_binary(r, '+', before, jinja_str(s), &before));
    TRY(jinja_binary(r, '*', jinja_str(fill), jinja_int(right), &after));
    TRY(jinja_binary(r, '+', before, after, &before));
    *out = before.text;
    return MPK_OK;
}

/* side: -1 fills on the right (ljust), 1 on the left (rjust), 0 on both (center).  center puts the
 * odd one as CPython does: left where room and width are both odd. Width and the fill count in
 * characters. */
static mpk_status just_method(jrun *r, jval self, const jargs *args, int side, jval *out)
{
    jval a[2];
    str fill = STR(" "), s;
    int64_t width = 0;
    TRY(jinja_bind(r, "this method", args, "/width fillchar", 1, a));
    TRY(jinja_need_int(r, a[0], "this method", &width));
    if (a[1].kind != J_ABSENT)
        TRY(jinja_need_str(r, a[1], "this method", &fill));
    if (jinja_chars(fill) != 1)
        return jinja_fail(r, "what fills must be one character");
    TRY(jinja_charge(r, self.text.n));
    int64_t length = (int64_t)jinja_chars(self.text), room = width > length ? width - length : 0;
    int64_t left = side > 0 ? room : 0;
    if (!side)
        left = room / 2 + (room & width & 1);
    TRY(pad(r, self.text, left, room - left, fill, &s));
    return give(self, s, out);
}

static mpk_status str_ljust(jrun *r, jval self, const jargs *args, jval *out)
{
    return just_method(r, self, args, -1, out);
}

static mpk_status str_rjust(jrun *r, jval self, const jargs *args, jval *out)
{
    return just_method(r, self, args, 1, out);
}

static mpk_status str_center(jrun *r, jval self, const jargs *args, jval *out)
{
    return just_method(r, self, args, 0, out);
}

/* Zeros go between a sign and the digits.  The sign stays in front: -5 to width 4 is -005. */
static mpk_status str_zfill(jrun *r, jval self, const jargs *args, jval *out)
{
    jval a;
    int64_t width = 0;
    str s = self.text, sign = {s.at, 0}, filled;
    TRY(jinja_bind(r, "zfill", args, "/width", 1, &a));
    TRY(jinja_need_int(r, a, "zfill", &width));
    int64_t length = (int64_t)jinja_chars(s);
    if (width > length && s.n && (s.at[0] == '-' || s.at[0] == '+')) {
        sign.n = 1;
        s = (str){s.at + 1, s.n - 1};
    }
    TRY(pad(r, s, width > length ? width - length : 0, 0, STR("0"), &filled));
    if (sign.n)
        TRY(append(r, &sign, filled));
    return give(self, sign.n ? sign : filled, out);
}

static mpk_status str_format(jrun *r, jval self, const jargs *args, jval *out)
{
    if (self.markup)
        return jinja_refuse(r, "format of a text that is marked safe is not supported");
    return jinja_str_format(r, self.text, args, out);
}

/* ---- classes ---- */

/* isdigit, isupper and their like: true if the text is not empty and all of its characters are of
 * the class. */
static mpk_status class_method(jrun *r, jval self, const jargs *args, jclass class, jval *out)
{
    TRY(jinja_bind(r, "this method", args, "", 0, NULL));
    TRY(jinja_charge(r, self.text.n));
    *out = jinja_bool(jinja_is_class(self.text, class));
    return MPK_OK;
}

#define CLASS_METHOD(name, class)                                            \
    static mpk_status name(jrun *r, jval self, const jargs *args, jval *out) \
    {                                                                        \
        return class_method(r, self, args, class, out);                      \
    }
CLASS_METHOD(str_isalpha, J_ALPHA)
CLASS_METHOD(str_isdigit, J_DIGIT)
CLASS_METHOD(str_isdecimal, J_DECIMAL)
CLASS_METHOD(str_isnumeric, J_NUMERIC)
CLASS_METHOD(str_isalnum, J_ALNUM)
CLASS_METHOD(str_isspace, J_SPACE)
CLASS_METHOD(str_isupper, J_IS_UPPER)
CLASS_METHOD(str_islower, J_IS_LOWER)
CLASS_METHOD(str_istitle, J_IS_TITLE)

static mpk_status str_isascii(jrun *r, jval self, const jargs *args, jval *out)
{
    TRY(jinja_bind(r, "isascii", args, "", 0, NULL));
    *out = jinja_bool(jinja_chars(self.text) == self.text.n);
    return jinja_charge(r, self.text.n);
}

/* ---- the table ---- */

const jmethod jinja_str_methods[] = {{"capitalize", str_capitalize, 0, 0},
                                     {"casefold", NULL, 0, 0},
                                     {"center", str_center, 0, 0},
                                     {"count", str_count, 0, 0},
                                     {"encode", NULL, 0, 0},
                                     {"endswith", str_endswith, 0, 0},
                                     {"expandtabs", NULL, 0, 0},
                                     {"find", str_find, 0, 0},
                                     {"format", str_format, 0, 0},
                                     {"format_map", NULL, 0, 0},
                                     {"index", str_index, 0, 0},
                                     {"isalnum", str_isalnum, 0, 0},
                                     {"isalpha", str_isalpha, 0, 0},
                                     {"isascii", str_isascii, 0, 0},
                                     {"isdecimal", str_isdecimal, 0, 0},
                                     {"isdigit", str_isdigit, 0, 0},
                                     {"isidentifier", NULL, 0, 0},
                                     {"islower", str_islower, 0, 0},
                                     {"isnumeric", str_isnumeric, 0, 0},
                                     {"isprintable", NULL, 0, 0},
                                     {"isspace", str_isspace, 0, 0},
                                     {"istitle", str_istitle, 0, 0},
                                     {"isupper", str_isupper, 0, 0},
                                     {"join", str_join, 0, 0},
                                     {"ljust", str_ljust, 0, 0},
                                     {"lower", str_lower, 0, 0},
                                     {"lstrip", str_lstrip, 0, 0},
                                     {"maketrans", NULL, 0, 0},
                                     {"partition", str_partition, 0, 0},
                                     {"removeprefix", str_removeprefix, 0, 0},
                                     {"removesuffix", str_removesuffix, 0, 0},
                                     {"replace", str_replace, 0, 0},
                                     {"rfind", str_rfind, 0, 0},
                                     {"rindex", str_rindex, 0, 0},
                                     {"rjust", str_rjust, 0, 0},
                                     {"rpartition", str_rpartition, 0, 0},
                                     {"rsplit", str_rsplit, 0, 0},
                                     {"rstrip", str_rstrip, 0, 0},
                                     {"split", str_split, 0, 0},
                                     {"splitlines", str_splitlines, 0, 0},
                                     {"startswith", str_startswith, 0, 0},
                                     {"strip", str_strip, 0, 0},
                                     {"swapcase", str_swapcase, 0, 0},
                                     {"title", str_title, 0, 0},
                                     {"translate", NULL, 0, 0},
                                     {"upper", str_upper, 0, 0},
                                     {"zfill", str_zfill, 0, 0},
                                     {0}};
