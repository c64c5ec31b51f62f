/* safetensors_fuzz.c - any bytes as a .safetensors file: an error or tensors whose every byte can
 * be read. */
#include "load/load.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Any bytes as a file: refused, or every byte of every tensor can be read. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    mpk_context cx = {0};
    load_model m = {0};
    volatile unsigned char seen = 0;
    m.config.n_layers = m.config.n_experts = 2;
    if (load_safetensors_bytes(&cx, data, size, &m) == MPK_OK &&
        load_stack_experts(&cx, &m) == MPK_OK)
        for (size_t i = 0; i < m.tensors.n; i++) {
            const load_tensor *t = &m.tensors.at[i];
            uint64_t part = t->n_bytes / (t->parts ? (uint64_t)t->dims[0] : 1);
            for (uint64_t k = 0; k < t->n_bytes; k++)
                seen = ((const unsigned char *)(t->parts ? t->parts[k / part] : t->data))[k % part];
        }
    (void)seen;
    load_close(&m);
    return 0;
}
