/* gguf_fuzz.c - any bytes as a GGUF file: an error, or tensors that can be read and
 * hyper-parameters of which a program can be built (or is refused). */
#include "load/load.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* A configuration that was accepted is built as well. Building may refuse it; it may not read or
 * write beyond a table. */
static void build_program(const load_model *m)
{
    mpk_context cx = {0};
    arena a = {0};
    ir_graph *g;
    model_shape shape = {.n_tokens = 2,
                         .n_rows = 1,
                         .n_slots = 1,
                         .n_pages = 2,
                         .page_tokens = 4,
                         .max_pages_per_slot = 2,
                         .kv_dtype = IR_F32,
                         .activation_dtype = IR_F32};
    model_weights weights = load_weights(m);
    (void)model_build(&cx, &a, &m->config, &shape, &weights, &g);
    arena_free(&a);
}

/* Any bytes as a file: refused, or every byte of every tensor can be read. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    mpk_context cx = {0};
    load_model m = {0};
    volatile unsigned char seen = 0;
    if (load_gguf_bytes(&cx, data, size, &m) == MPK_OK && load_stack_experts(&cx, &m) == MPK_OK) {
        for (size_t i = 0; i < m.tensors.n; i++) {
            const load_tensor *t = &m.tensors.at[i];
            uint64_t part = t->n_bytes / (t->parts ? (uint64_t)t->dims[0] : 1);
            for (uint64_t k = 0; k < t->n_bytes; k++)
                seen = ((const unsigned char *)(t->parts ? t->parts[k / part] : t->data))[k % part];
        }
        if (m.has_config && m.config.n_layers <= 4)
            build_program(&m);
    }
    (void)seen;
    load_close(&m);
    return 0;
}
