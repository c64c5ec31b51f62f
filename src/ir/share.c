/* share.c - names of parts of weights: what a peer holds of a weight is a constant whose name
 * says which part it is, so that the code that loads it needs nothing else.
 *
 * "lm_head.weight[512:1024/2048]@1" are the entries 512 to 1023 of the 2048 of axis 0, for peer
 * 1; "[:,512:1024/2048]" those of axis 1.  A weight of which every peer holds all keeps its
 * name.  Made by pass shard, read where the engine binds weights (engine_compile.c) and by
 * targets.
 */
#include "ir/ir.h"

/* ir_read_share is the inverse.  The peer's number is part of the name since constants of one
 * program need different names even where two peers hold the same part. */
mpk_status ir_name_share(mpk_context *cx, arena *a, const ir_share *share, uint32_t peer, str *name)
{
    text t = {0};
    text_print(&t, "%.*s[", STR_ARG(share->whole));
    for (uint32_t i = 0; i < share->axis; i++)
        text_print(&t, ":,");
    text_print(&t, "%lld:%lld/%lld]@%u", (long long)share->lo, (long long)share->hi,
               (long long)share->size, peer);
    char *copy = t.failed ? NULL : arena_copy(a, t.at, t.n);
    size_t n = t.n;
    text_free(&t);
    CHECK(cx, copy, MPK_ENOMEM, "out of memory for the name of a weight");
    *name = (str){copy, n};
    return MPK_OK;
}

/* Read up to 18 digits and then the character `then`; false if the text is not so.  18 digits
 * cannot overflow. */
static bool read_count(const char **at, const char *end, char then, int64_t *out)
{
    const char *from = *at;
    *out = 0;
    while (*at < end && **at >= '0' && **at <= '9' && *at - from < 18)
        *out = *out * 10 + (*(*at)++ - '0');
    return *at > from && *at < end && *(*at)++ == then;
}

/* A name that only looks like a share, or has numbers that contradict each other, is a weight's
 * own name. */
ir_share ir_read_share(str name)
{
    const ir_share all = {.whole = name, .axis = IR_NONE, .peer = IR_EVERYWHERE};
    const char *bracket = memchr(name.at, '[', name.n), *end = name.at + name.n, *at = bracket;
    ir_share s = {0};
    if (!bracket)
        return all;
    for (at++; end - at > 1 && at[0] == ':' && at[1] == ','; at += 2)
        s.axis++;
    bool is_share = read_count(&at, end, ':', &s.lo) && read_count(&at, end, '/', &s.hi) &&
                    read_count(&at, end, ']', &s.size) && s.lo < s.hi && s.hi <= s.size &&
                    s.axis < IR_MAX_RANK && at < end && *at == '@';
    s.whole = (str){name.at, (size_t)(bracket - name.at)};
    for (at++; is_share && at < end && *at >= '0' && *at <= '9' && s.peer < IR_MAX_PEERS; at++)
        s.peer = 10 * s.peer + (uint32_t)(*at - '0');
    return is_share ? s : all;
}
