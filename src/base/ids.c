/* ids.c - one check, and one message, for token ids that come from outside.
 *
 * Input: ids of a caller, a file or a request, and how many ids there are.  Called by the engine
 * before it feeds or spells ids, and by commands that index rows of logits by them. */
#include "base/ids.h"

mpk_status ids_check(mpk_context *cx, const int32_t *ids, size_t n, uint32_t vocab_size)
{
    for (size_t i = 0; i < n; i++)
        CHECK(cx, ids[i] >= 0 && (uint32_t)ids[i] < vocab_size, MPK_EARG,
              "token %zu is %d, but the vocabulary has ids 0 to %lld", i, ids[i],
              (long long)vocab_size - 1);
    return MPK_OK;
}
