/* hf_config_fuzz.c - any bytes as config.json, generation_config.json and tokenizer_config.json. */
#include "load/load.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Any text as a configuration: if it is accepted, its program can be built. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    mpk_context cx = {0};
    load_model m = {0};
    ir_graph *g;
    str json = {(const char *)data, size};
    model_shape shape = {.n_tokens = 2,
                         .n_rows = 1,
                         .n_slots = 1,
                         .n_pages = 2,
                         .page_tokens = 4,
                         .max_pages_per_slot = 2,
                         .kv_dtype = IR_F32,
                         .activation_dtype = IR_F32};
    model_weights weights = load_weights(&m);
    /* a configuration that passes model_check can be built */
    if (load_hf_config(&cx, &m.arena, json, &m.config) == MPK_OK && m.config.n_layers <= 4 &&
        model_build(&cx, &m.arena, &m.config, &shape, &weights, &g) != MPK_OK)
        __builtin_trap();
    (void)load_hf_scheme(&cx, json, &m.scheme);
    (void)load_hf_generation_config(&cx, json, &m);
    (void)load_hf_chat_template(&cx, json, &m);
    load_close(&m);
    return 0;
}
