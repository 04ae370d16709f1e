// Preloaded into a process: fails chosen system calls on files whose paths match a pattern.
//
// What to fail is said in a file that both sides map (FAULTS_CONTROL); `interposer.py` writes it. Calls are counted
// while `armed`, over all threads, and the call number `at` fails with `error`; with `sticky` every later one as well.
// With `after` the call is made all the same: it took effect, and its answer was lost.

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

struct control {
    int64_t armed, kinds, at, sticky, after, error, seen, hits;
    char pattern[512], unlike[512];  // shell patterns whose `*` goes over slashes too: which paths, and which of them not
    char first[512];                 // the first call that failed
};

enum { OPEN = 1, WRITE = 2, FSYNC = 4, LINK = 8, RENAME = 16, UNLINK = 32, MKDIR = 64, READ = 128 };

static struct control *control;

__attribute__((constructor)) static void begin(void) {
    const char *path = getenv("FAULTS_CONTROL");
    int descriptor = path ? open(path, O_RDWR | O_CLOEXEC) : -1;
    if (descriptor < 0) return;
    void *mapped = mmap(NULL, sizeof *control, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
    if (mapped != MAP_FAILED) control = mapped;
    close(descriptor);
}

// The error that this call has to give, or 0.
static int judge(int kind, const char *call, const char *path) {
    if (!control || !control->armed || !(control->kinds & kind)) return 0;
    if (fnmatch(control->pattern, path, 0) || !fnmatch(control->unlike, path, 0)) return 0;
    int64_t number = __atomic_add_fetch(&control->seen, 1, __ATOMIC_SEQ_CST);
    if (number < control->at || (number > control->at && !control->sticky)) return 0;
    if (__atomic_add_fetch(&control->hits, 1, __ATOMIC_SEQ_CST) == 1)
        snprintf(control->first, sizeof control->first, "%s %s", call, path);
    return (int)control->error;
}

static const char *path_of(int descriptor, char *buffer, size_t size) {
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
    ssize_t length = control && control->armed ? readlink(link, buffer, size - 1) : 0;
    buffer[length > 0 ? length : 0] = 0;
    return buffer;
}

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))
#define THROUGH(type, kind, name, path, ...)                      \
    int wrong = judge(kind, #name, path);                         \
    if (wrong && !control->after) return errno = wrong, -1;       \
    type result = REAL(name)(__VA_ARGS__);                        \
    if (wrong && result >= 0) return errno = wrong, -1;           \
    return result
#define BY_PATH(name, kind, path, params, ...) \
    int name params { THROUGH(int, kind, name, path, __VA_ARGS__); }
#define BY_FILE(type, name, kind, params, ...)              \
    type name params {                                      \
        char buffer[4096];                                  \
        const char *path = path_of(file, buffer, sizeof buffer); \
        THROUGH(type, kind, name, path, __VA_ARGS__);       \
    }
// An open that failed has made nothing: `after` is not for it.
#define OPENS(name, params, last, ...)                                                         \
    int name params {                                                                          \
        va_list rest;                                                                          \
        va_start(rest, last);                                                                  \
        mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(rest, mode_t) : 0;                \
        va_end(rest);                                                                          \
        int wrong = flags & (O_CREAT | O_WRONLY | O_RDWR) ? judge(OPEN, #name, path) : 0;      \
        return wrong ? (errno = wrong, -1) : REAL(name)(__VA_ARGS__, flags, mode);             \
    }

OPENS(open, (const char *path, int flags, ...), flags, path)
OPENS(open64, (const char *path, int flags, ...), flags, path)
OPENS(openat, (int at, const char *path, int flags, ...), flags, at, path)
OPENS(openat64, (int at, const char *path, int flags, ...), flags, at, path)
BY_FILE(ssize_t, write, WRITE, (int file, const void *data, size_t size), file, data, size)
BY_FILE(ssize_t, pwrite, WRITE, (int file, const void *data, size_t size, off_t offset), file, data, size, offset)
BY_FILE(ssize_t, pwrite64, WRITE, (int file, const void *data, size_t size, off64_t offset), file, data, size, offset)
BY_FILE(ssize_t, writev, WRITE, (int file, const struct iovec *parts, int count), file, parts, count)
BY_FILE(ssize_t, pwritev, WRITE, (int file, const struct iovec *parts, int count, off_t offset), file, parts, count, offset)
BY_FILE(ssize_t, pwritev64, WRITE, (int file, const struct iovec *parts, int count, off64_t offset), file, parts, count, offset)
BY_FILE(ssize_t, read, READ, (int file, void *data, size_t size), file, data, size)
BY_FILE(ssize_t, pread, READ, (int file, void *data, size_t size, off_t offset), file, data, size, offset)
BY_FILE(ssize_t, pread64, READ, (int file, void *data, size_t size, off64_t offset), file, data, size, offset)
BY_FILE(int, fsync, FSYNC, (int file), file)
BY_FILE(int, fdatasync, FSYNC, (int file), file)
BY_PATH(link, LINK, to, (const char *from, const char *to), from, to)
BY_PATH(linkat, LINK, to, (int a, const char *from, int b, const char *to, int flags), a, from, b, to, flags)
BY_PATH(rename, RENAME, to, (const char *from, const char *to), from, to)
BY_PATH(renameat, RENAME, to, (int a, const char *from, int b, const char *to), a, from, b, to)
BY_PATH(unlink, UNLINK, path, (const char *path), path)
BY_PATH(unlinkat, UNLINK, path, (int at, const char *path, int flags), at, path, flags)
BY_PATH(rmdir, UNLINK, path, (const char *path), path)
BY_PATH(mkdir, MKDIR, path, (const char *path, mode_t mode), path, mode)
BY_PATH(mkdirat, MKDIR, path, (int at, const char *path, mode_t mode), at, path, mode)
