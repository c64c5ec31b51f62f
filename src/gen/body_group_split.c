/* body_group_split.c - generic bodies of group_moments and group_scale, a group norm in two steps
 * (device/task/group_split.cuh).
 *
 * They take any plain floats and strides; what channels as neighbours gain is decided in the
 * device's code.  An instance of group_scale is one call:
 *
 *   group_scale_run(t, in_x, in_moments, in_weight, in_bias, out_y, 1e-05, ACTIVATE_SILU); */
#include "gen/body_print.h"

enum { MOMENTS = 1, EPS = 0, ACT };

GEN_PRINTER(group_moments, "group_moments_run", "")

static mpk_status print_group_scale(mpk_context *cx, const gen_call *c, uint32_t n, text *out)
{
    const str act = c->op->attributes[ACT].s;
    (void)cx;
    gen_print_head(c, n, out);
    gen_print_call(c, "group_scale_run", out);
    text_print(out, ", ");
    gen_print_double(c->op->attributes[EPS].f, out);
    text_print(out, ", ACTIVATE_%s);\n}\n", gen_glu_name(act));
    return MPK_OK;
}

/* Three sums of each group, and of the eight channels of each thread; or what mpk_sum takes. */
static uint32_t scratch_of_moments(const gen_call *c)
{
    const uint32_t groups = (uint32_t)gen_output(c, 0)->dims[2],
                   bytes = (3 * groups + GEN_BODY_THREADS * 8) * (uint32_t)sizeof(float);
    return bytes > GEN_REDUCE_BYTES ? bytes : GEN_REDUCE_BYTES;
}

/* Mean and factor of each group, and two sums of each thread that joins moments. */
static uint32_t scratch_of_scale(const gen_call *c)
{
    const uint32_t groups = (uint32_t)gen_input(c, MOMENTS)->dims[2],
                   sums = groups > GEN_BODY_THREADS ? groups : GEN_BODY_THREADS;
    return (groups + sums) * 2 * (uint32_t)sizeof(float);
}

const gen_body gen_body_group_moments =
    GEN_BODY("group_moments", "group_split", print_group_moments, scratch_of_moments);
const gen_body gen_body_group_scale =
    GEN_BODY("group_scale", "group_split", print_group_scale, scratch_of_scale);
