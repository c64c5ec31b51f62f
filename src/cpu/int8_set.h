/* int8_set.h - the int8_kernels of an instruction set.  Included after the definition of
 *
 *   multiply_rows(dtype, x, w, row_bytes, n, panel, sums, ld)    an int8_product
 *
 * which is compiled for each format, with its dtype as a constant.
 */
#ifndef CPU_INT8_SET_H
#define CPU_INT8_SET_H

#define INT8_PRODUCT(name, dtype)                                                               \
    static void product_##name(const int8_rows *x, const void *w, int64_t row_bytes, int64_t n, \
                               void *panel, float *sums, int64_t ld)                            \
    {                                                                                           \
        multiply_rows(dtype, x, w, row_bytes, n, panel, sums, ld);                              \
    }
INT8_PRODUCT(q4_0, IR_Q4_0)
INT8_PRODUCT(q4_1, IR_Q4_1)
INT8_PRODUCT(q5_0, IR_Q5_0)
INT8_PRODUCT(q5_1, IR_Q5_1)
INT8_PRODUCT(q8_0, IR_Q8_0)
INT8_PRODUCT(q2_k, IR_Q2_K)
INT8_PRODUCT(q3_k, IR_Q3_K)
INT8_PRODUCT(q4_k, IR_Q4_K)
INT8_PRODUCT(q5_k, IR_Q5_K)
INT8_PRODUCT(q6_k, IR_Q6_K)
INT8_PRODUCT(iq4_nl, IR_IQ4_NL)
INT8_PRODUCT(mxfp4, IR_MXFP4)
INT8_PRODUCT(iq1_s, IR_IQ1_S)
INT8_PRODUCT(iq1_m, IR_IQ1_M)
INT8_PRODUCT(iq2_xxs, IR_IQ2_XXS)
INT8_PRODUCT(iq2_xs, IR_IQ2_XS)
INT8_PRODUCT(iq2_s, IR_IQ2_S)
INT8_PRODUCT(iq3_xxs, IR_IQ3_XXS)
INT8_PRODUCT(iq3_s, IR_IQ3_S)
INT8_PRODUCT(iq4_xs, IR_IQ4_XS)
INT8_PRODUCT(tq1_0, IR_TQ1_0)
INT8_PRODUCT(tq2_0, IR_TQ2_0)

/* The int8_kernels of this instruction set, whose panels have this many bytes. */
#define INT8_SET(bytes)                                                             \
    {                                                                               \
        .product = {[IR_Q4_0] = product_q4_0,       [IR_Q4_1] = product_q4_1,       \
                    [IR_Q5_0] = product_q5_0,       [IR_Q5_1] = product_q5_1,       \
                    [IR_Q8_0] = product_q8_0,       [IR_Q2_K] = product_q2_k,       \
                    [IR_Q3_K] = product_q3_k,       [IR_Q4_K] = product_q4_k,       \
                    [IR_Q5_K] = product_q5_k,       [IR_Q6_K] = product_q6_k,       \
                    [IR_IQ4_NL] = product_iq4_nl,   [IR_MXFP4] = product_mxfp4,     \
                    [IR_IQ1_S] = product_iq1_s,     [IR_IQ1_M] = product_iq1_m,     \
                    [IR_IQ2_XXS] = product_iq2_xxs, [IR_IQ2_XS] = product_iq2_xs,   \
                    [IR_IQ2_S] = product_iq2_s,     [IR_IQ3_XXS] = product_iq3_xxs, \
                    [IR_IQ3_S] = product_iq3_s,     [IR_IQ4_XS] = product_iq4_xs,   \
                    [IR_TQ1_0] = product_tq1_0,     [IR_TQ2_0] = product_tq2_0},    \
        .narrow = narrow, .panel_bytes = bytes,                                     \
    }

#endif
