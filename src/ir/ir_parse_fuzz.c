/* ir_parse_fuzz.c - any bytes: a verified graph that prints and parses to the same bytes, or an
 * error. */
#include <stdlib.h>

#include "ir/op.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Any text: refused with words, or printed, parsed and printed again to the same bytes. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    mpk_context cx = {0};
    arena memory = {0};
    ir_graph *graph, *again;
    text first = {0}, second = {0};
    mpk_status status = ir_parse(&cx, &memory, (str){(const char *)data, size}, &graph);
    if (status == MPK_OK) {
        ir_print(graph, &first);
        if (ir_parse(&cx, &memory, (str){first.at, first.n}, &again) != MPK_OK)
            abort();
        ir_print(again, &second);
        if (first.n != second.n || (first.n && memcmp(first.at, second.at, first.n) != 0))
            abort();
    } else if (cx.text_bytes == 0) {
        abort(); /* every error has a message */
    }
    text_free(&first);
    text_free(&second);
    arena_free(&memory);
    return 0;
}
