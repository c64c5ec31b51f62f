/* safetensors_fuzz.c - any bytes as a .safetensors file, of any scheme of quantised weights: an
 * error or tensors whose every byte can be read. */
#include "load/load.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Any bytes as a file: refused, or every byte of every tensor can be read. */
static void read_as(const uint8_t *data, size_t size, load_scheme scheme)
{
    mpk_context cx = {0};
    load_model m = {.scheme = scheme,
                    .config = {.family = str_from("gpt_oss"), .weight_dtype = IR_BF16}};
    volatile unsigned char seen = 0;
    m.config.n_layers = m.config.n_experts = 2;
    if (load_safetensors_bytes(&cx, data, size, &m) == MPK_OK &&
        load_dequantize(&cx, &m) == MPK_OK && load_stack_experts(&cx, &m) == MPK_OK)
        for (size_t i = 0; i < m.tensors.n; i++) {
            const load_tensor *t = &m.tensors.at[i];
            uint64_t part = t->n_bytes / (t->parts ? (uint64_t)t->dims[0] : 1);
            for (uint64_t k = 0; k < t->n_bytes; k++)
                seen = ((const unsigned char *)(t->parts ? t->parts[k / part] : t->data))[k % part];
        }
    (void)seen;
    load_close(&m);
}

/* The scheme is not in the file: all are tried. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    for (int method = LOAD_PLAIN; method <= LOAD_MXFP4; method++)
        read_as(data, size, (load_scheme){(load_method)method, 4, 1, {16, 16}, 0});
    return 0;
}
