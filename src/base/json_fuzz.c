/* json_fuzz.c - any bytes as a JSON document: an error, or a value that is the same when written
 * and read again. */
#include <stdlib.h>

#include "base/json.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void must(bool holds)
{
    if (!holds)
        abort();
}

/* What was parsed, written and parsed again is equal. */
static void write_and_read(arena *a, const json_value *value, unsigned indent)
{
    mpk_context cx = {0};
    text t = {0};
    const json_value *back = NULL;
    json_write(&t, value, indent);
    must(!t.failed);
    must(json_parse(&cx, a, (str){t.at, t.n}, &back) == MPK_OK);
    must(json_equals(value, back));
    text_free(&t);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    mpk_context cx = {0};
    arena a = {0};
    const json_value *value = NULL;
    mpk_status status = json_parse(&cx, &a, (str){(const char *)data, size}, &value);
    must((status == MPK_OK) == (value != NULL));
    must(status == MPK_OK || cx.text_bytes);
    if (value) {
        write_and_read(&a, value, 0);
        write_and_read(&a, value, 1);
    }
    arena_free(&a);
    return 0;
}
