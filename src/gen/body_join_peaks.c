/* body_join_peaks.c - the generic body that joins peers' peaks (device/task/join_peaks.cuh).
 *
 *   join_peaks_part(t, in_x0, out_y, 0);
 *   join_peaks_part(t, in_x1, out_y, 1188);     of 1,188 blocks in x0 */
#include "gen/body_print.h"

/* One call for each part, with the blocks before it. */
static mpk_status print(mpk_context *cx, const gen_call *c, uint32_t n, text *out)
{
    (void)cx;
    int64_t first = 0;
    gen_print_head(c, n, out);
    for (uint32_t i = 0; i < c->op->n_in; i++) {
        text_print(out, "    join_peaks_part(t, in_x%u, out_y, %lld);\n", i, (long long)first);
        first += gen_input(c, i)->dims[1];
    }
    text_print(out, "}\n");
    return MPK_OK;
}

const gen_body gen_body_join_peaks = GEN_BODY("join_peaks", "join_peaks", print, NULL);
