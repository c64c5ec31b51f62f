/* body_sample.c - the body of sample (device/task/sample.cuh), which is the only one: a row of
 * logits is drawn from by the block as a whole, whatever the vocabulary.  Programs for any number
 * of requests share its instance (gen_print_head_of_slots). */
#include "gen/body_print.h"

static mpk_status print(mpk_context *cx, const gen_call *c, uint32_t n, text *out)
{
    (void)cx;
    gen_print_head_of_slots(c, n, out);
    gen_print_call(c, "sample_run", out);
    text_print(out, ");\n}\n");
    return MPK_OK;
}

/* As in chance.cuh: ranks and values of a block, maxima of lanes, sums of groups, the lanes'
 * largest logits before rules, words of one thread, a ring of the row's next quads for each
 * lane. */
static uint32_t scratch_bytes(const gen_call *c)
{
    const uint32_t in_flight = c->needs & GEN_ROOM ? 8 : 2;
    return GEN_REDUCE_BYTES + 1024 * 16 + 256 * 4 + 32 * 8 + 256 * 8 + 64 + in_flight * 256 * 16;
}

const gen_body gen_body_sample = GEN_BODY("sample", "sample", print, scratch_bytes);
