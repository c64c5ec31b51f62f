/* net_page.h - the text of page.html, which cmake/page.cmake writes as C. */
#ifndef NET_PAGE_H
#define NET_PAGE_H

#include <stddef.h>

extern const char net_page_text[];
extern const size_t net_page_bytes;

#endif
