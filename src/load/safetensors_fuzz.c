/* safetensors_fuzz.c - any bytes as a .safetensors file: an error or tensors whose every byte can be read. */
#include "load/load.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    mpk_context cx = {0};
    load_model m = {0};
    volatile unsigned char seen = 0;
    if (load_safetensors_bytes(&cx, data, size, &m) == MPK_OK)
        for (size_t i = 0; i < m.tensors.n; i++)
            for (uint64_t k = 0; k < m.tensors.at[i].n_bytes; k++)
                seen = ((const unsigned char *)m.tensors.at[i].data)[k];
    (void)seen;
    load_close(&m);
    return 0;
}
