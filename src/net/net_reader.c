/* net_reader.c - members of a body by their type (net_reader.h): flags, numbers, texts, JSON.
 * Called by net_request.c and net_request_chat.c for each parameter that they read. */
#include <math.h>

#include "net/net_reader.h"

/* A flag is never a number or a text: "false" as a text would otherwise count as true. */
mpk_status net_read_flag(net_reader *r, const char *key, bool *to)
{
    const json_value *v = json_get(r->body, key);
    if (v && v->kind != JSON_KIND_BOOL)
        REFUSE(r, key, "'%s' must be true or false", key);
    if (v)
        *to = v->boolean;
    return MPK_OK;
}

/* The value of an integer; 16.0 is one, as some clients write it.  Beyond 2^53 a double is not
 * exact. */
static bool as_whole(const json_value *v, int64_t *to)
{
    const double x = v->number;
    if (v->kind != JSON_KIND_NUMBER)
        return false;
    if (v->is_integer) {
        *to = v->integer;
        return true;
    }
    if (fabs(x) >= 0x1p53 || x != floor(x))
        return false;
    *to = (int64_t)x;
    return true;
}

/* An absent key leaves *to as it is, so the caller sets the default first. 3.0 is a whole number,
 * too: some clients send all numbers as floats. */
mpk_status net_read_whole(net_reader *r, const char *key, int64_t least, int64_t most, int64_t *to)
{
    const json_value *v = json_get(r->body, key);
    int64_t value;
    if (!v)
        return MPK_OK;
    if (!as_whole(v, &value) || value < least || value > most)
        REFUSE(r, key, "'%s' must be a whole number from %lld to %lld", key, (long long)least,
               (long long)most);
    *to = value;
    return MPK_OK;
}

/* A number within both bounds; JSON has no NaN. */
mpk_status net_read_real(net_reader *r, const char *key, double least, double most, float *to)
{
    const json_value *v = json_get(r->body, key);
    if (v && (v->kind != JSON_KIND_NUMBER || !(v->number >= least && v->number <= most)))
        REFUSE(r, key, "'%s' must be a number from %g to %g", key, least, most);
    if (v)
        *to = (float)v->number;
    return MPK_OK;
}

/* The copy ends with a NUL, so a NUL within would cut it without a word: it is refused. */
mpk_status net_read_words(net_reader *r, const char *key, const char **to)
{
    const json_value *v = json_get(r->body, key);
    *to = NULL;
    if (!v)
        return MPK_OK;
    if (v->kind != JSON_KIND_STRING || (v->text.n && memchr(v->text.at, 0, v->text.n)))
        REFUSE(r, key, "'%s' must be a string without NUL", key);
    *to = arena_copy(r->a, v->text.at, v->text.n);
    CHECK(r->cx, *to, MPK_ENOMEM, "out of memory for '%s'", key);
    return MPK_OK;
}

/* A value as text again, for a reader that takes JSON (forms, templates' variables); in the
 * request's arena. */
mpk_status net_read_json(net_reader *r, const json_value *value, const char **to)
{
    text t = {0};
    json_write(&t, value, 0);
    *to = t.failed ? NULL : arena_copy(r->a, t.at, t.n);
    text_free(&t);
    CHECK(r->cx, *to, MPK_ENOMEM, "out of memory for a part of the request");
    return MPK_OK;
}
