/* A disk that fails, for LD_PRELOAD: calls on files below one folder end with an error.
   ks_fault(folder, mode, rate, seed) sets it in the process; ks_failed() counts the calls that ended so. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

enum { OFF, RANDOM, FULL, READ_ONLY };
enum { READS = 1, WRITES = 2, CHANGES = 4 };

static char root[4096];
static volatile int mode = OFF;
static volatile unsigned rate = 1, state = 1;
static volatile long failed = 0;

void ks_fault(const char *folder, int new_mode, unsigned new_rate, unsigned seed) {
    mode = OFF;
    strncpy(root, folder, sizeof root - 1);
    rate = new_rate;
    state = seed | 1;
    mode = new_mode;
}

long ks_failed(void) { return failed; }

static int below(const char *path) {
    return path && strncmp(path, root, strlen(root)) == 0;
}

static int of_file(int fd) {
    char link[64], path[4096];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length < 0) return 0;
    path[length] = 0;
    return below(path);
}

static int error_of(int kind) {
    if (mode == RANDOM) {
        unsigned next = state;
        next ^= next << 13; next ^= next >> 17; next ^= next << 5;
        state = next;
        return next % rate == 0 ? EIO : 0;
    }
    if (mode == FULL) return kind & WRITES ? ENOSPC : 0;
    if (mode == READ_ONLY) return kind & CHANGES ? EROFS : 0;
    return 0;
}

#define FAIL_IF(ours, kind, result) \
    if (mode != OFF) { \
        int saved = errno, error = (ours) ? error_of(kind) : 0; \
        errno = saved; \
        if (error) { failed++; errno = error; return result; } \
    }
#define REAL(name) \
    static __typeof__(name) *real = NULL; \
    if (!real) real = (__typeof__(name) *)dlsym(RTLD_NEXT, #name);

ssize_t write(int fd, const void *data, size_t size) { REAL(write) FAIL_IF(of_file(fd), WRITES, -1) return real(fd, data, size); }
ssize_t pwrite(int fd, const void *data, size_t size, off_t at) { REAL(pwrite) FAIL_IF(of_file(fd), WRITES, -1) return real(fd, data, size, at); }
ssize_t pwrite64(int fd, const void *data, size_t size, off64_t at) { REAL(pwrite64) FAIL_IF(of_file(fd), WRITES, -1) return real(fd, data, size, at); }
ssize_t writev(int fd, const struct iovec *parts, int count) { REAL(writev) FAIL_IF(of_file(fd), WRITES, -1) return real(fd, parts, count); }
ssize_t read(int fd, void *data, size_t size) { REAL(read) FAIL_IF(of_file(fd), READS, -1) return real(fd, data, size); }
ssize_t pread(int fd, void *data, size_t size, off_t at) { REAL(pread) FAIL_IF(of_file(fd), READS, -1) return real(fd, data, size, at); }
ssize_t pread64(int fd, void *data, size_t size, off64_t at) { REAL(pread64) FAIL_IF(of_file(fd), READS, -1) return real(fd, data, size, at); }
int fsync(int fd) { REAL(fsync) FAIL_IF(of_file(fd), WRITES, -1) return real(fd); }
int fdatasync(int fd) { REAL(fdatasync) FAIL_IF(of_file(fd), WRITES, -1) return real(fd); }
int rename(const char *old, const char *new) { REAL(rename) FAIL_IF(below(new), CHANGES, -1) return real(old, new); }
int mkdir(const char *path, mode_t rights) { REAL(mkdir) FAIL_IF(below(path), WRITES | CHANGES, -1) return real(path, rights); }
int unlink(const char *path) { REAL(unlink) FAIL_IF(below(path), CHANGES, -1) return real(path); }

#define OPENING(name) \
    int name(const char *path, int flags, ...) { \
        REAL(name) \
        va_list rest; va_start(rest, flags); int rights = va_arg(rest, int); va_end(rest); \
        int kind = flags & O_CREAT ? WRITES | CHANGES : flags & (O_WRONLY | O_RDWR) ? CHANGES : READS; \
        FAIL_IF(below(path), kind, -1) \
        return real(path, flags, rights); \
    }
OPENING(open)
OPENING(open64)

#define OPENING_AT(name) \
    int name(int folder, const char *path, int flags, ...) { \
        REAL(name) \
        va_list rest; va_start(rest, flags); int rights = va_arg(rest, int); va_end(rest); \
        int kind = flags & O_CREAT ? WRITES | CHANGES : flags & (O_WRONLY | O_RDWR) ? CHANGES : READS; \
        FAIL_IF(below(path), kind, -1) \
        return real(folder, path, flags, rights); \
    }
OPENING_AT(openat)
OPENING_AT(openat64)
