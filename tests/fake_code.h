/* fake_code.h - code of a program for machines on the stand-in for the driver (fake_cuda.h), so
 * that none is compiled.  For cuda_bed.h and serve_bed.h.
 */
#ifndef TESTS_FAKE_CODE_H
#define TESTS_FAKE_CODE_H

#include "check.h"

#include "cuda/cuda_machine.h"

/* What cuda_compile would give for an image. */
static inline str fake_code(mpk_context *cx, arena *a, const program_image *image, gen_whole whole)
{
    gen_source source;
    static const char elf[] = "\177ELF of the kernel";
    char *code = arena_alloc(a, 1, sizeof(cuda_code_head) + (1 + GEN_REGIMES) * sizeof elf);
    check_ok(cx, gen_source_of_image(cx, a, image, gen_arch_find("sm_90a"), whole, &source));
    cuda_code_head head = cuda_head_of(source.text);
    head.loader_bytes = sizeof elf;
    for (uint32_t r = 0; r < source.n_regimes; r++)
        head.kernel_bytes[r] = sizeof elf;
    memcpy(code, &head, sizeof head);
    for (uint32_t i = 0; i <= source.n_regimes; i++)
        memcpy(code + sizeof head + i * sizeof elf, elf, sizeof elf);
    return (str){code, sizeof head + (1 + source.n_regimes) * sizeof elf};
}

#endif
