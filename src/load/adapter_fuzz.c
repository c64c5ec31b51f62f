/* adapter_fuzz.c - any bytes as an adapter: a GGUF file, or an adapter_config.json, a NUL and a
 * safetensors file.  Refused, or changes that can be merged into weights of their shape. */
#include <stdlib.h>

#include "load/adapter.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Numbers of a weight at most; larger ones are left out. */
enum { MOST = 1 << 14 };

/* Into zeros: whatever the numbers are, this ends in a weight or in a refusal. */
static void merge(adapter_change *c)
{
    mpk_context cx = {0};
    arena a = {0};
    load_tensor t = c->whole;
    if (c->left.rank)
        t = (load_tensor){.rank = 2, .dims = {adapter_rows(c), adapter_columns(c)}};
    t.dtype = IR_BF16;
    t.name = c->name;
    const bool fits =
        t.rank && load_tensor_bytes(&cx, &t, &t.n_bytes) == MPK_OK && t.n_bytes <= 2 * MOST &&
        (!c->left.rank || adapter_rank(c) <= MOST) &&
        (!c->magnitude.rank || (c->magnitude.rank == 1 && c->magnitude.dims[0] == t.dims[0]));
    t.data = fits ? arena_alloc(&a, 1, (size_t)t.n_bytes) : NULL;
    c->entry = -1;
    if (t.data)
        (void)adapter_merge(&cx, &a, c, IR_F16, &t);
    arena_free(&a);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    mpk_context cx = {0};
    adapter a = {0};
    const uint8_t *end = memchr(data, 0, size);
    const size_t n = end ? (size_t)(end - data) : size;
    mpk_status status = MPK_EFORMAT;
    if (size >= 4 && memcmp(data, "GGUF", 4) == 0)
        status = adapter_read_gguf(&cx, data, size, &a);
    else if (n < size &&
             load_safetensors_bytes(&cx, data + n + 1, size - n - 1, &a.files) == MPK_OK)
        status = adapter_read_peft(&cx, (str){(const char *)data, n}, &a);
    for (size_t i = 0; status == MPK_OK && i < a.changes.n; i++)
        merge(&a.changes.at[i]);
    load_close(&a.files);
    return 0;
}
