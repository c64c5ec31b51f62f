/* safetensors_test.c - hand-made files: a right one, and each fault once. */
#include <stdlib.h>
#include <unistd.h>

#include "check.h"
#include "load/load.h"

/* A file of this header and n_data bytes of data (0, 1, 2 ...). */
static void build_file(text *t, const char *header, size_t n_data)
{
    uint64_t n = strlen(header);
    for (int i = 0; i < 8; i++)
        text_add(t, &(char){(char)(n >> (8 * i))}, 1);
    text_add(t, header, n);
    for (size_t i = 0; i < n_data; i++)
        text_add(t, &(char){(char)i}, 1);
    assert_false(t->failed);
}

/* Shapes, dtypes and the place of the data; names are those of the header. */
static void test_reads_tensors(void **state)
{
    (void)state;
    mpk_context cx = {0};
    load_model m = {0};
    text t = {0};
    build_file(&t,
               "{\"__metadata__\": {\"format\": \"pt\"},"
               " \"b\": {\"dtype\": \"F16\", \"shape\": [3], \"data_offsets\": [24, 30]},"
               " \"a.weight\": {\"dtype\": \"F32\", \"shape\": [2, 3], \"data_offsets\": [0, 24]},"
               " \"c\": {\"dtype\": \"BF16\", \"shape\": [], \"data_offsets\": [30, 32]}}",
               32);
    check_ok(&cx, load_safetensors_bytes(&cx, (unsigned char *)t.at, t.n, &m));
    assert_int_equal(m.tensors.n, 3);
    const load_tensor *a = load_find(&m, "a.weight"), *b = load_find(&m, "b"),
                      *c = load_find(&m, "c");
    assert_true(a && b && c && !load_find(&m, "__metadata__"));
    assert_int_equal(a->dtype, IR_F32);
    assert_int_equal(a->rank, 2);
    assert_int_equal(a->dims[0], 2);
    assert_int_equal(a->dims[1], 3);
    assert_int_equal(a->n_bytes, 24);
    assert_int_equal(((const unsigned char *)a->data)[23], 23);
    assert_int_equal(b->dtype, IR_F16);
    assert_int_equal(((const unsigned char *)b->data)[0], 24);
    assert_int_equal(c->dtype, IR_BF16);
    assert_int_equal(c->rank, 0);
    load_close(&m);
    text_free(&t);
}

#define ONE(dtype, shape, begin, end)                                                             \
    "{\"a\": {\"dtype\": \"" dtype "\", \"shape\": " shape ", \"data_offsets\": [" begin ", " end \
    "]}}"

/* One mistake a file: sizes, offsets, dtypes, overlaps. */
static void test_each_fault(void **state)
{
    (void)state;
    static const struct {
        mpk_status status;
        const char *needle, *header;
    } cases[] = {
        {MPK_EFORMAT, "not valid JSON", "{\"a\": "},
        {MPK_EFORMAT, "the header is not an object", "[]"},
        {MPK_EFORMAT, "two members \"a\"", "{\"a\": {}, \"a\": {}}"},
        {MPK_EFORMAT, "not described by an object", "{\"a\": 7}"},
        {MPK_EFORMAT, "empty name",
         "{\"\": {\"dtype\": \"F32\", \"shape\": [2], \"data_offsets\": [0, 8]}}"},
        {MPK_EFORMAT, "control character",
         "{\"a\\nb\": {\"dtype\": \"F32\", \"shape\": [2], \"data_offsets\": [0, 8]}}"},
        {MPK_EFORMAT, "no \"dtype\"", "{\"a\": {\"shape\": [2], \"data_offsets\": [0, 8]}}"},
        {MPK_EUNSUPPORTED, "F8_E5M2 is not supported", ONE("F8_E5M2", "[8]", "0", "8")},
        {MPK_EUNSUPPORTED, "U64 is not supported", ONE("U64", "[1]", "0", "8")},
        {MPK_EFORMAT, "\"shape\" is not a list", ONE("F32", "2", "0", "8")},
        {MPK_EFORMAT, "\"shape\" is not a list of at most 6",
         ONE("F32", "[1,1,1,1,1,1,2]", "0", "8")},
        {MPK_EFORMAT, "something that is not a size", ONE("F32", "[2.5]", "0", "8")},
        {MPK_EFORMAT, "dimension 0 is 0", ONE("F32", "[0]", "0", "0")},
        {MPK_EFORMAT, "dimension 1 is -2", ONE("F32", "[1, -2]", "0", "8")},
        {MPK_EFORMAT, "multiply to more",
         ONE("F32", "[4294967296, 4294967296, 4294967296]", "0", "8")},
        {MPK_EFORMAT, "multiply to more", ONE("F32", "[281474976710656]", "0", "8")},
        {MPK_EFORMAT, "not a pair",
         "{\"a\": {\"dtype\": \"F32\", \"shape\": [2], \"data_offsets\": [0]}}"},
        {MPK_EFORMAT, "not a pair", ONE("F32", "[2]", "0", "8.0")},
        {MPK_EFORMAT, "bytes -8 to 0 of 16", ONE("F32", "[2]", "-8", "0")},
        {MPK_EFORMAT, "bytes 8 to 0 of 16", ONE("F32", "[2]", "8", "0")},
        {MPK_EFORMAT, "bytes 16 to 24 of 16", ONE("F32", "[2]", "16", "24")},
        {MPK_EFORMAT, "has 12 bytes, its shape and dtype need 8", ONE("F32", "[2]", "0", "12")},
        {MPK_EFORMAT, "tensors a and b overlap",
         "{\"b\": {\"dtype\": \"F32\", \"shape\": [2], \"data_offsets\": [7, 15]},"
         " \"a\": {\"dtype\": \"F32\", \"shape\": [2], \"data_offsets\": [0, 8]}}"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        mpk_context cx = {0};
        load_model m = {0};
        text t = {0};
        build_file(&t, cases[i].header, 16);
        check_fails(&cx, cases[i].status, cases[i].needle,
                    load_safetensors_bytes(&cx, (unsigned char *)t.at, t.n, &m));
        load_close(&m);
        text_free(&t);
    }
}

/* Every beginning of a right file is refused. */
static void test_cut_short(void **state)
{
    (void)state;
    text t = {0};
    build_file(&t, ONE("F32", "[4]", "0", "16"), 16);
    for (size_t n = 0; n < t.n; n++) {
        mpk_context cx = {0};
        load_model m = {0};
        /* so that the sanitizer sees a read beyond the end */
        unsigned char *copy = malloc(n ? n : 1);
        memcpy(copy, t.at, n);
        assert_int_equal(load_safetensors_bytes(&cx, copy, n, &m), MPK_EFORMAT);
        load_close(&m);
        free(copy);
    }
    unsigned char huge[16] = {255, 255, 255, 255, 255, 255, 255, 255};
    mpk_context cx = {0};
    load_model m = {0};
    check_fails(&cx, MPK_EFORMAT, "18446744073709551615 bytes",
                load_safetensors_bytes(&cx, huge, sizeof huge, &m));
    load_close(&m);
    text_free(&t);
}

/* ---- shards in a folder ---- */

/* A file of the folder, which the test removes. */
static void write_shard(const char *folder, const char *name, const char *header, size_t n_data)
{
    mpk_context cx = {0};
    arena a = {0};
    text t = {0};
    const char *path;
    build_file(&t, header, n_data);
    check_ok(&cx, file_join(&cx, &a, folder, name, &path));
    check_ok(&cx, file_write(&cx, path, t.at, t.n));
    text_free(&t);
    arena_free(&a);
}

/* Tensors of all files together; an index that names no file, or a tensor that no file has. */
static void test_shards(void **state)
{
    (void)state;
    mpk_context cx = {0};
    load_model m = {0};
    char folder[] = "/tmp/mpk_shards_XXXXXX", path[64];
    assert_non_null(mkdtemp(folder));
    write_shard(folder, "1.safetensors", ONE("F32", "[4]", "0", "16"), 16);
    write_shard(folder, "2.safetensors",
                "{\"b\": {\"dtype\": \"F16\", \"shape\": [2], \"data_offsets\": [0, 4]}}", 4);
    check_ok(&cx, load_safetensors_index(
                      &cx, folder,
                      STR("{\"weight_map\": {\"b\": \"2.safetensors\", \"a\": \"1.safetensors\"}}"),
                      &m));
    assert_int_equal(m.tensors.n, 2);
    assert_int_equal(m.files.n, 2);
    assert_int_equal(load_find(&m, "b")->dtype, IR_F16);
    load_close(&m);

    check_fails(&cx, MPK_EFORMAT, "tensor c is not in the shard 1.safetensors",
                load_safetensors_index(
                    &cx, folder,
                    STR("{\"weight_map\": {\"a\": \"1.safetensors\", \"c\": \"1.safetensors\"}}"),
                    &m));
    load_close(&m);
    check_fails(&cx, MPK_EFORMAT, "not the name of a file",
                load_safetensors_index(&cx, folder,
                                       STR("{\"weight_map\": {\"a\": \"../1.safetensors\"}}"), &m));
    load_close(&m);
    check_fails(&cx, MPK_EIO, "3.safetensors",
                load_safetensors_index(&cx, folder,
                                       STR("{\"weight_map\": {\"a\": \"3.safetensors\"}}"), &m));
    load_close(&m);
    check_fails(&cx, MPK_EFORMAT, "no object \"weight_map\"",
                load_safetensors_index(&cx, folder, STR("{}"), &m));
    load_close(&m);

    write_shard(folder, "2.safetensors", ONE("F32", "[4]", "0", "16"), 16);
    check_fails(&cx, MPK_EFORMAT, "tensor a is there twice",
                load_safetensors_index(
                    &cx, folder,
                    STR("{\"weight_map\": {\"b\": \"2.safetensors\", \"a\": \"1.safetensors\"}}"),
                    &m));
    load_close(&m);
    for (int i = 1; i <= 2; i++) {
        snprintf(path, sizeof path, "%s/%d.safetensors", folder, i);
        unlink(path);
    }
    rmdir(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_reads_tensors),
        cmocka_unit_test(test_each_fault),
        cmocka_unit_test(test_cut_short),
        cmocka_unit_test(test_shards),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
