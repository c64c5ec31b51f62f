/* ctest: slow */
/* tools_test.c - a kernel as a whole and as linked units: that both compile, that products of many
 * tokens do not wait in either, and where the pages lie in shared memory.  Without NVRTC nothing is
 * tested, without nvJitLink only the whole. */
#include "check.h"

#include <elf.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "cuda/tools.h"
#include "gen/source.h"

static mpk_context cx;
static uint64_t seed;

/* Bodies with what is delicate about units: pages, warpgroups, calls between units. */
static const char *const bodies[] = {"linear_stream", "linear_tile", "linear", "attention_tile",
                                     "rope_tile"};
enum { N_BODIES = sizeof bodies / sizeof *bodies, LINEAR_TILE = 1 };
enum { TWO_UNITS = 1u << 1 | 1u << 2 };

/* Which of them runs the last operator of the graph; N_BODIES: none. */
static unsigned body_of(const gen_arch *arch, const ir_graph *ir, uint32_t n_tokens)
{
    gen_call c = {.ir = ir,
                  .op = &ir->ops.at[ir->ops.n - 1],
                  .n_tokens = n_tokens,
                  .n_workers = arch->n_sms,
                  .needs = arch->features,
                  .halves = IR_BF16};
    const gen_body *body = gen_body_choose(&c, UINT32_MAX);
    unsigned i = 0;
    while (i < N_BODIES && !(body && strcmp(body->name, bodies[i]) == 0))
        i++;
    return i;
}

/* The first case of an operator that each of these bodies runs, as graphs of one program. */
static void write_source(arena *a, const gen_arch *arch, gen_source *source)
{
    gen_graph graphs[N_BODIES];
    bool seen[N_BODIES + 1] = {[N_BODIES] = true};
    uint32_t n = 0;
    for (const op_def *const *def = op_table; *def; def++)
        for (uint32_t i = 0; i < (*def)->n_cases; i++) {
            ir_graph *ir;
            check_ok(&cx, ir_parse(&cx, a, str_from((*def)->cases[i].graph), &ir));
            const ir_tensor *y = &ir->tensors.at[ir->ops.at[ir->ops.n - 1].out[0]];
            const uint32_t n_tokens = (uint32_t)(y->rank ? y->dims[0] : 1);
            const unsigned body = body_of(arch, ir, n_tokens);
            /* products of many tokens stand in a long step, which is for the kernel of prompts */
            if (!seen[body])
                graphs[n++] =
                    (gen_graph){.ir = ir, .n_tokens = body == LINEAR_TILE ? 512 : n_tokens};
            seen[body] = true;
        }
    assert_true(n);
    check_ok(&cx, gen_source_make(&cx, a, n, graphs, arch->n_sms, arch, GEN_KERNEL, source));
}

/* Bytes of shared memory that the kernel has for itself; the pages follow. */
static size_t own_bytes(const text *code)
{
    Elf64_Ehdr head;
    Elf64_Shdr row, names;
    memcpy(&head, code->at, sizeof head);
    memcpy(&names, code->at + head.e_shoff + (size_t)head.e_shstrndx * sizeof names, sizeof names);
    for (unsigned i = 0; i < head.e_shnum; i++) {
        memcpy(&row, code->at + head.e_shoff + i * sizeof row, sizeof row);
        if (strcmp(code->at + names.sh_offset + row.sh_name, ".nv.shared.mpk_kernel") == 0)
            return row.sh_size;
    }
    fail_msg("the kernel has no shared memory");
    return 0;
}

/* Compile one kernel and look at its code: what the host looks up by name is there, the pages that
 * follow its own shared memory are aligned for bulk copies, and wgmma is not serialized. */
static void build_one(const cuda_tools *t, const cuda_source *s)
{
    text code = {0}, log = {0};
    check_ok(&cx, cuda_tools_compile(&cx, t, s, &code, &log));
    assert_memory_equal(code.at, ELFMAG, SELFMAG);
    assert_non_null(memmem(code.at, code.n, "mpk_timed", 9)); /* the host looks it up */
    assert_int_equal(own_bytes(&code) % 1024, 0);
    if (strstr(log.at, "are serialized"))
        fail_msg("%s, %s: wgmma waits after every product: %.300s", s->arch->name,
                 t->linker ? "units" : "whole", strstr(log.at, "ptxas info    : (C7"));
    text_free(&code);
    text_free(&log);
}

/* The test ends here where there is no NVRTC. */
static void open_or_skip(const cuda_source *s, cuda_tools *t)
{
    if (cuda_tools_open(&cx, s, t) == MPK_OK)
        return;
    check_skip(cx.text);
}

/* First in its process: the second opening finds NVRTC loaded, by its name alone, and nvJitLink all
 * the same. */
static void opened_again(void **state)
{
    (void)state;
    cuda_tools t;
    cuda_source s = {.name = "unit.cu", .arch = gen_arch_find("sm_80"), .units = TWO_UNITS};
    open_or_skip(&s, &t);
    bool linked = t.linker != NULL;
    cuda_tools_close(&t);
    check_ok(&cx, cuda_tools_open(&cx, &s, &t));
    assert_true(!linked || t.linker);
    cuda_tools_close(&t);
}

/* One kernel in one of the two ways; in units only where there is a linker.  Was it built? */
static bool build_regime(const gen_source *source, const gen_arch *arch, uint32_t regime,
                         bool in_units)
{
    cuda_tools t;
    cuda_source s = {.name = regime ? "build.1.cu" : "build.cu",
                     .code = source->text,
                     .arch = arch,
                     .regime = regime,
                     .units = in_units ? source->units[regime] : 0,
                     .keep_folder = getenv("MPK_KEEP")};
    open_or_skip(&s, &t);
    const bool builds = !in_units || t.linker;
    if (builds)
        build_one(&t, &s);
    cuda_tools_close(&t);
    return builds;
}

/* Is the kernel of this regime built in this way for this architecture?  A build takes a minute, so
 * the seed says which: those of prompts in units where there are products of warpgroups, or, as
 * often, one of all.  A thorough check builds all. */
static bool is_drawn(const gen_arch *arch, uint32_t regime, bool in_units)
{
    uint64_t n = 0;
    while (gen_arch_table[n].name)
        n++;
    if (check_thorough())
        return true;
    if (seed % 2)
        return in_units && regime == GEN_PROMPTS && arch->features & GEN_WGMMA;
    return (uint64_t)(arch - gen_arch_table) == seed / 2 % n &&
           seed / 2 / n % (2 * GEN_REGIMES) == 2 * regime + in_units;
}

/* The kernel of each regime in units and as a whole, as far as drawn; where there is no linker, as
 * a whole. */
static void as_a_whole_and_in_units(void **state)
{
    (void)state;
    for (const gen_arch *arch = gen_arch_table; arch->name; arch++) {
        arena a = {0};
        gen_source source;
        write_source(&a, arch, &source);
        assert_int_equal(source.n_regimes, GEN_REGIMES);
        for (uint32_t r = 0; r < source.n_regimes; r++) {
            bool whole = is_drawn(arch, r, false);
            if (is_drawn(arch, r, true))
                whole |= !build_regime(&source, arch, r, true);
            if (whole)
                build_regime(&source, arch, r, false);
        }
        arena_free(&a);
    }
}

/* The call of a graph, compiled as a whole; its source holds `words`.  Its first operator is a
 * product with tasks of each loop by boxes: these are compiled, and no others. */
static void build_call(const char *graph_text, uint32_t n_tokens, const char *words)
{
    const gen_arch *arch = gen_arch_find("sm_90a");
    arena a = {0};
    ir_graph *ir;
    gen_source source;
    cuda_tools t;
    check_ok(&cx, ir_parse(&cx, &a, str_from(graph_text), &ir));
    const rt_task tasks[] = {{.hi = {128, 128}}, {.hi = {128, 192}}, {.hi = {128, 256}}};
    const gen_graph graph = {
        .ir = ir, .n_tokens = n_tokens, .n_tasks = sizeof tasks / sizeof *tasks, .tasks = tasks};
    check_ok(&cx, gen_source_make(&cx, &a, 1, &graph, arch->n_sms, arch, GEN_CALL, &source));
    assert_non_null(strstr(source.text.at, words));
    assert_true(source.maps[0] || source.maps[GEN_PROMPTS]);
    const cuda_source s = {
        .name = "call.cu", .code = source.text, .arch = arch, .keep_folder = getenv("MPK_KEEP")};
    open_or_skip(&s, &t);
    build_one(&t, &s);
    cuda_tools_close(&t);
    arena_free(&a);
}

/* A call with products by boxes beside attention by warpgroups, which one function holds: neither
 * waits after each product. */
static void call_of_attention(void **state)
{
    (void)state;
    static const char layer[] = "input %x : bf16[1500, 512]\nconst %w : bf16[1536, 512]\n"
                                "input %q : bf16[2, 8, 1500, 64]\ninput %k : bf16[2, 8, 1500, 64]\n"
                                "input %v : bf16[2, 8, 1500, 64]\n"
                                "%y = linear(%x, %w)\n%z = sdpa(%q, %k, %v)\n"
                                "output %y\noutput %z\n";
    build_call(layer, 1500, "block_group_multiply(r_");
}

/* The same of a convolution of images, whose boxes are windows. */
static void call_of_images(void **state)
{
    (void)state;
    build_call("input %x : bf16[8, 28, 28, 128]\nconst %w : bf16[256, 3, 3, 128]\n"
               "const %s : f32[256]\nconst %b : f32[256]\ninput %r : bf16[6272, 256]\n"
               "%y = conv_flat(%x, %w, %s, %b, _, %r) {kernel = [3, 3], padding = [1, 1], relu = "
               "1}\noutput %y\n",
               8, "#define MPK_IMAGES 1");
}

/* Keys of both ways, and what is kept of units. */
static void tools_and_files(void **state)
{
    (void)state;
    arena a = {0};
    str whole, units;
    cuda_tools t;
    text code = {0};
    char folder[] = "/tmp/mpk-build-XXXXXX", path[80];
    static const char *const kept[] = {"unit.cu",         "unit.cu.1.log",   "unit.cu.2.log",
                                       "unit.cu.1.cubin", "unit.cu.2.cubin", "unit.cu.cubin"};
    cuda_source s = {
        .name = "unit.cu",
        .code =
            STR("#if MPK_UNIT == 2\nextern \"C\" __device__ int two(void) { return 2; }\n#else\n"
                "extern \"C\" __device__ int two(void);\n"
                "extern \"C\" __global__ void f(int *x) { *x = two(); }\n#endif\n"),
        .arch = gen_arch_find("sm_80"),
        .units = TWO_UNITS};
    open_or_skip(&s, &t);
    if (!t.linker) {
        cuda_tools_close(&t);
        check_skip("there is no nvJitLink");
    }
    check_ok(&cx, cuda_tools_describe(&cx, &a, &t, &s, &units));
    check_ok(&cx, cuda_tools_describe(&cx, &a, &(cuda_tools){t.nvrtc, NULL}, &s, &whole));
    assert_false(str_equal(whole, units));
    assert_non_null(mkdtemp(folder));
    s.keep_folder = folder;
    check_ok(&cx, cuda_tools_compile(&cx, &t, &s, &code, NULL));
    for (size_t i = 0; i < sizeof kept / sizeof *kept; i++) {
        snprintf(path, sizeof path, "%s/%s", folder, kept[i]);
        assert_int_equal(unlink(path), 0);
    }
    assert_int_equal(rmdir(folder), 0);
    text_free(&code);
    s.keep_folder = NULL;
    s.code = STR("#if MPK_UNIT == 2\n#else\nextern \"C\" __device__ int two(void);\n"
                 "extern \"C\" __global__ void f(int *x) { *x = two(); }\n#endif\n");
    check_fails(&cx, MPK_EDEVICE, "two", cuda_tools_compile(&cx, &t, &s, &code, NULL));
    cuda_tools_close(&t);
    arena_free(&a);
}

/* NVRTC alone in a folder: no linker, and the whole compiles. */
static void no_linker(void **state)
{
    (void)state;
    cuda_tools t;
    cuda_linker *l;
    char folder[] = "/tmp/mpk-build-XXXXXX", path[64];
    const char *before = getenv("MPK_NVRTC");
    char *named = before ? strdup(before) : NULL;
    cuda_source s = {.name = "unit.cu", .arch = gen_arch_find("sm_80"), .units = TWO_UNITS};
    open_or_skip(&s, &t);
    const char *file = cuda_nvrtc_path(t.nvrtc), *slash = strrchr(file, '/');
    if (slash) {
        assert_non_null(mkdtemp(folder));
        snprintf(path, sizeof path, "%s%s", folder, slash);
        assert_int_equal(symlink(file, path), 0);
        setenv("MPK_NVRTC", path, 1);
        cuda_tools_close(&t);
        check_ok(&cx, cuda_tools_open(&cx, &s, &t));
        assert_null(t.linker);
        check_fails(&cx, MPK_EUNSUPPORTED, "pip install nvidia-nvjitlink",
                    cuda_linker_open(&cx, t.nvrtc, &l));
        unlink(path);
        rmdir(folder);
        unsetenv("MPK_NVRTC");
        if (named)
            setenv("MPK_NVRTC", named, 1);
    }
    cuda_tools_close(&t);
    free(named);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(opened_again),      cmocka_unit_test(as_a_whole_and_in_units),
        cmocka_unit_test(call_of_attention), cmocka_unit_test(call_of_images),
        cmocka_unit_test(tools_and_files),   cmocka_unit_test(no_linker)};
    seed = check_seed();
    return check_result(cmocka_run_group_tests(tests, NULL, NULL));
}
