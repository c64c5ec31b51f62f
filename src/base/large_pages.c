/* large_pages.c - the system's advice on page sizes. */
#include "base/large_pages.h"

#include <stdint.h>
#include <sys/mman.h>

void pages_make_large(void *p, size_t n)
{
    uintptr_t first = ((uintptr_t)p + LARGE_PAGE - 1) & ~(uintptr_t)(LARGE_PAGE - 1),
              end = (uintptr_t)p + n;
    if (end > first && end - first >= LARGE_PAGE)
        madvise((void *)first, end - first, MADV_HUGEPAGE);
}
