/* tg_parse_fuzz.c - parse any bytes as a task graph: the result is an error or a graph, which
 * prints, parses again to the same text, and which the verifier and the passes take or refuse
 * without harm. */
#include <stdint.h>
#include <stdlib.h>

#include "pass/pass.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Two prints of the same graph must agree. */
static void check_again(mpk_context *cx, arena *a, const text *first)
{
    tg_graph *g;
    text second = {0};
    if (tg_parse(cx, a, (str){first->at, first->n}, &g) != MPK_OK)
        abort();
    tg_print(g, &second);
    if (second.n != first->n || memcmp(second.at, first->at, first->n) != 0)
        abort();
    text_free(&second);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char *const passes[TG_LEVELS] = {"depend,drop_implied,fuse_events", "fuse_events",
                                                  "postpone,merge_forks,label_launch,normalize",
                                                  "linearize,assign", "plan_memory"};
    mpk_context cx = {0};
    arena a = {0};
    tg_graph *g;
    str source = {(const char *)data, size};
    if (size < 1 << 16 && tg_parse(&cx, &a, source, &g) == MPK_OK) {
        pass_options options = {.n_workers = 3, .page_bytes = 4096, .pages_per_worker = 16};
        text printed = {0}, result = {0};
        tg_print(g, &printed);
        check_again(&cx, &a, &printed);
        if (tg_verify(&cx, &a, g) == MPK_OK)
            if (pass_run_text(&cx, &options, str_from(passes[g->level]), source, &result) ==
                MPK_EVERIFY)
                abort(); /* the input was proved, so the output must be provable */
        text_free(&printed);
        text_free(&result);
    }
    arena_free(&a);
    return 0;
}
