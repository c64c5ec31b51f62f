/* fake_cuda_shared.c - entry points of the stand-in for libcuda: memory that processes share.
 *
 * Memory is a file without a name (memfd), so two processes that use the stand-in share it as two
 * that use GPUs do.  After its bytes the file has a page that says whose it is, by which the
 * process that opens it knows the device.  A mapping is known to the books (fake_cuda_books.h) as
 * memory of that device, which the devices that were given access may touch.
 */
#include "fake_cuda_books.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { PAGE = 4096, GRANULARITY = 65536 };

/* The driver's layouts, as in cuda/driver_entries.h. */
typedef struct form {
    int type, handle_types, location, device;
    void *unused;
    unsigned char flags[8];
} form;
typedef struct access_of {
    int location, device, flags;
} access_of;

typedef struct handle {
    int fd, device;
    size_t n;
} handle;

static handle *handle_of(unsigned long long number)
{
    return (handle *)(uintptr_t)number;
}

static handle *new_handle(int fd, int device, size_t n)
{
    handle *h = fake_new_handle(SHARED, sizeof *h);
    *h = (handle){fd, device, n};
    return h;
}

static bool fits(const form *f)
{
    return f->type == 1 && f->handle_types == 1 && f->location == 1 && f->device >= 0 &&
           f->device < MAX_DEVICES;
}

ENTRY cuMemGetAllocationGranularity(size_t *out, const form *f, int flag);
ENTRY cuMemGetAllocationGranularity(size_t *out, const form *f, int flag)
{
    ENTER("cuMemGetAllocationGranularity");
    *out = GRANULARITY;
    return fits(f) && flag == 1 ? 0 : INVALID;
}

/* The whole file, the page at its end included. */
static int make_file(size_t n, int device)
{
    int fd = memfd_create("fake gpu", MFD_CLOEXEC);
    if (fd >= 0 && ftruncate(fd, (off_t)(n + PAGE)) == 0 &&
        pwrite(fd, &device, sizeof device, (off_t)n) == sizeof device)
        return fd;
    if (fd >= 0)
        close(fd);
    return -1;
}

ENTRY cuMemCreate(unsigned long long *out, size_t n, const form *f, unsigned long long flags);
ENTRY cuMemCreate(unsigned long long *out, size_t n, const form *f, unsigned long long flags)
{
    ENTER_CURRENT("cuMemCreate");
    if (!n || n % GRANULARITY || !fits(f) || flags)
        return INVALID;
    if (n > fake_setting("memory", 1 << 30) - fake_used_bytes())
        return NO_MEMORY;
    int fd = make_file(n, f->device);
    if (fd < 0)
        return NO_MEMORY;
    *out = (uintptr_t)new_handle(fd, f->device, n);
    return 0;
}

ENTRY cuMemRelease(unsigned long long number);
ENTRY cuMemRelease(unsigned long long number)
{
    int code = fake_enter("cuMemRelease");
    close(handle_of(number)->fd);
    return fake_end_handle(SHARED, handle_of(number)) ? INVALID : code;
}

ENTRY cuMemExportToShareableHandle(int *out, unsigned long long number, int type,
                                   unsigned long long flags);
ENTRY cuMemExportToShareableHandle(int *out, unsigned long long number, int type,
                                   unsigned long long flags)
{
    ENTER_CURRENT("cuMemExportToShareableHandle");
    *out = fcntl(handle_of(number)->fd, F_DUPFD_CLOEXEC, 0);
    return type == 1 && !flags && *out >= 0 ? 0 : INVALID;
}

ENTRY cuMemImportFromShareableHandle(unsigned long long *out, void *descriptor, int type);
ENTRY cuMemImportFromShareableHandle(unsigned long long *out, void *descriptor, int type)
{
    struct stat s;
    int device = -1;
    ENTER_CURRENT("cuMemImportFromShareableHandle");
    int fd = fcntl((int)(intptr_t)descriptor, F_DUPFD_CLOEXEC, 0);
    if (type != 1 || fd < 0)
        return INVALID;
    if (fstat(fd, &s) || s.st_size <= PAGE ||
        pread(fd, &device, sizeof device, s.st_size - PAGE) != sizeof device) {
        close(fd);
        return INVALID;
    }
    *out = (uintptr_t)new_handle(fd, device, (size_t)s.st_size - PAGE);
    return 0;
}

ENTRY cuMemAddressReserve(uint64_t *out, size_t n, size_t alignment, uint64_t at,
                          unsigned long long flags);
ENTRY cuMemAddressReserve(uint64_t *out, size_t n, size_t alignment, uint64_t at,
                          unsigned long long flags)
{
    ENTER_CURRENT("cuMemAddressReserve");
    if (!n || n % GRANULARITY || alignment || at || flags)
        return INVALID;
    void *p = mmap(NULL, n, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED)
        return NO_MEMORY;
    *out = (uintptr_t)p;
    fake_count(RESERVED, 1);
    return 0;
}

ENTRY cuMemAddressFree(uint64_t at, size_t n);
ENTRY cuMemAddressFree(uint64_t at, size_t n)
{
    int code = fake_enter("cuMemAddressFree");
    fake_count(RESERVED, -1);
    return munmap((void *)(uintptr_t)at, n) ? INVALID : code;
}

/* No device may touch it yet. */
ENTRY cuMemMap(uint64_t at, size_t n, size_t offset, unsigned long long number,
               unsigned long long flags);
ENTRY cuMemMap(uint64_t at, size_t n, size_t offset, unsigned long long number,
               unsigned long long flags)
{
    const handle *h = handle_of(number);
    ENTER_CURRENT("cuMemMap");
    if (offset || flags || n != h->n ||
        mmap((void *)(uintptr_t)at, n, PROT_NONE, MAP_SHARED | MAP_FIXED, h->fd, 0) == MAP_FAILED)
        return INVALID;
    fake_add_mapping(at, n, h->device);
    return 0;
}

ENTRY cuMemUnmap(uint64_t at, size_t n);
ENTRY cuMemUnmap(uint64_t at, size_t n)
{
    int code = fake_enter("cuMemUnmap");
    if (!fake_remove_range(MAPPED, at) ||
        mmap((void *)(uintptr_t)at, n, PROT_NONE,
             MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0) == MAP_FAILED)
        return INVALID;
    return code;
}

ENTRY cuMemSetAccess(uint64_t at, size_t n, const access_of *of, size_t n_access);
ENTRY cuMemSetAccess(uint64_t at, size_t n, const access_of *of, size_t n_access)
{
    ENTER_CURRENT("cuMemSetAccess");
    if (n_access != 1 || of->location != 1 || of->flags != 3)
        return INVALID;
    return fake_let_touch(at, n, of->device);
}
