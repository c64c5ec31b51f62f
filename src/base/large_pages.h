/* large_pages.h - ask the system for large pages. */
#ifndef BASE_LARGE_PAGES_H
#define BASE_LARGE_PAGES_H

#include <stddef.h>

enum { LARGE_PAGE = 2 << 20 };

/* Put what lies whole in [p, p + n) into large pages, if the system has any: a stream then pays for
 * a translation every 2 MiB instead of every 4 KiB.  Before the memory is first touched.  A refusal
 * does no harm. */
void pages_make_large(void *p, size_t n);

#endif
