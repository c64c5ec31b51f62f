/* cpu_features.c - the instruction sets of this processor, as the operating system and MPK_ISA
 * let us use them.
 *
 * Called by cpu.c for the choice of bodies, and by cpu_target.c for its report.  Detected again
 * by each call, which is cheap beside a start.
 */
#include <stdio.h>
#include <stdlib.h>
#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#elif defined(__aarch64__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

#include "cpu/body.h"
#include "cpu/cpu.h"

#if defined(__x86_64__)
/* CPUID for the conversions between f16 and f32; not every compiler has a name for it. */
static bool has_f16c(void)
{
    unsigned a, b, c = 0, d;
    return __get_cpuid(1, &a, &b, &c, &d) && (c >> 29 & 1);
}

/* VNNI in vectors of 256 bits without AVX-512, as in Alder Lake; CPUID leaf 7.1, EAX bit 4. */
static bool has_avx_vnni(void)
{
    unsigned a = 0, b, c, d;
    return __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a >> 4 & 1);
}

/* Tiles and their products of bf16 and of bytes: CPUID leaf 7, EDX bits 24, 22 and 25, which all
 * processors with tiles have; the system saves tiles (XCR0 bits 17 and 18); and it lets this
 * process have them, which it must be asked for, since a frame of a signal grows by 8 KB.  It
 * refuses if some thread has a smaller stack for signals. */
static bool has_amx(void)
{
    enum { ARCH_REQ_XCOMP_PERM = 0x1023, TILE_DATA = 18 };
    unsigned a, b, c, d = 0, low, high;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || (~d & (1u << 24 | 1u << 22 | 1u << 25)))
        return false;
    __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return (low >> 17 & 3) == 3 && syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, TILE_DATA) == 0;
}
#endif

/* What of `allowed` the processor and the system can do.  AVX2 counts only with FMA and
 * F16C, because the AVX2 kernels use all three; AVX-512 only with the four parts that the
 * kernels use, and where AVX2 is there.  The compiler's functions also ask whether the operating
 * system saves the wide registers (XGETBV). */
static uint32_t detect(uint32_t allowed)
{
    uint32_t f = 0;
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c())
        f |= CPU_AVX2;
    if (f && has_avx_vnni())
        f |= CPU_AVX_VNNI;
    if (f && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq")) {
        f |= CPU_AVX512;
        if (__builtin_cpu_supports("avx512vnni"))
            f |= CPU_AVX512_VNNI;
        if (__builtin_cpu_supports("avx512bf16"))
            f |= CPU_AVX512_BF16;
        if (allowed & CPU_AMX && has_amx())
            f |= CPU_AMX;
    }
#elif defined(__aarch64__)
    const unsigned long has = getauxval(AT_HWCAP), more = getauxval(AT_HWCAP2);
    f |= has & HWCAP_ASIMD ? CPU_NEON : 0;
    f |= has & HWCAP_ASIMDDP ? CPU_NEON_DOT : 0;
    f |= more & HWCAP2_I8MM ? CPU_NEON_I8MM : 0;
#endif
    return f & allowed;
}

/* The words of MPK_ISA, from less to more: what each adds to the one before, and all that it
 * allows. */
static const struct {
    const char *word;
    uint32_t adds, allowed;
} levels[] = {
    {"none", 0, 0},
#if defined(__aarch64__)
    {"neon", CPU_NEON, CPU_NEON},
    {"dotprod", CPU_NEON_DOT, CPU_NEON | CPU_NEON_DOT},
    {"i8mm", CPU_NEON_I8MM, ~0u},
#else
    {"avx2", CPU_AVX2, CPU_AVX2},
    {"avxvnni", CPU_AVX_VNNI, CPU_AVX2 | CPU_AVX_VNNI},
    {"avx512", CPU_AVX512, CPU_AVX2 | CPU_AVX_VNNI | CPU_AVX512},
    {"avx512vnni", CPU_AVX512_VNNI, ~(uint32_t)CPU_AMX},
    {"amx", CPU_AMX, ~0u},
#endif
};
enum { LEVELS = sizeof levels / sizeof *levels };

/* The index of the level that MPK_ISA names; the last one if it is not set, LEVELS if there is
 * no such word. */
static int find_limit(void)
{
    const char *limit = getenv("MPK_ISA");
    int i = 0;
    if (!limit || !*limit)
        return LEVELS - 1;
    while (i < LEVELS && !str_is(str_from(limit), levels[i].word))
        i++;
    return i;
}

/* The message lists the words in the order of `levels`. */
mpk_status cpu_check_isa(mpk_context *cx)
{
    char words[64] = "none";
    for (int i = 1, n = 4; i < LEVELS; i++)
        n += snprintf(words + n, sizeof words - (size_t)n, "%s%s", i + 1 < LEVELS ? ", " : " or ",
                      levels[i].word);
    CHECK(cx, find_limit() < LEVELS, MPK_EARG, "MPK_ISA is \"%s\", expected %s", getenv("MPK_ISA"),
          words);
    return MPK_OK;
}

/* A word of MPK_ISA that is not known allows nothing: cpu_start has refused it by then. */
uint32_t cpu_features(void)
{
    int limit = find_limit();
    return limit < LEVELS ? detect(levels[limit].allowed) : 0;
}

/* The highest level that adds something which this processor has. */
const char *cpu_isa(void)
{
    uint32_t features = cpu_features();
    int i = LEVELS - 1;
    while (i && !(features & levels[i].adds))
        i--;
    return levels[i].word;
}
