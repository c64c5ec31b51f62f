/* cpu_features.c - instruction sets of this processor, as the operating system lets us use them. */
#include <stdlib.h>
#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include "cpu/body.h"
#include "cpu/cpu.h"

#if defined(__x86_64__)
/* Conversion between f16 and f32; not every compiler knows its name. */
static bool has_f16c(void)
{
    unsigned a, b, c = 0, d;
    return __get_cpuid(1, &a, &b, &c, &d) && (c >> 29 & 1);
}
#endif

static uint32_t detect(void)
{
    uint32_t f = 0;
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c())
        f |= CPU_AVX2;
    if (f && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq")) {
        f |= CPU_AVX512;
        if (__builtin_cpu_supports("avx512vnni"))
            f |= CPU_AVX512_VNNI;
        if (__builtin_cpu_supports("avx512bf16"))
            f |= CPU_AVX512_BF16;
    }
#endif
    return f;
}

uint32_t cpu_features(void)
{
    const char *limit = getenv("MPK_CPU_FEATURES");
    uint32_t allowed = CPU_AVX2 | CPU_AVX512 | CPU_AVX512_VNNI | CPU_AVX512_BF16;
    if (limit && str_is(str_from(limit), "none"))
        allowed = 0;
    else if (limit && str_is(str_from(limit), "avx2"))
        allowed = CPU_AVX2;
    else if (limit && str_is(str_from(limit), "avx512"))
        allowed = CPU_AVX2 | CPU_AVX512 | CPU_AVX512_VNNI;
    return detect() & allowed;
}
