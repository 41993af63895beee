/* Makes the disk of a process fail as a test says: preloaded into a server, it stands before the C library.
 *
 * The file $SCANKV_FAILING_DISK, which both processes map, says which calls fail and with which error. Only files below
 * $SCANKV_FAILING_ROOT are affected. tests/support/failing_disk.py has the other side of `struct control`. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

enum { GROWS = 1, SYNCS = 2, REMOVES = 4, READS = 8, SPACE = 16, SHORT = 32 };

struct control {
    _Atomic int64_t calls;  /* of the affected kinds, so far */
    _Atomic int64_t first;  /* the first of them that fails; 0: none */
    _Atomic int64_t kinds;  /* which kinds of calls are affected */
    _Atomic int64_t error;  /* the errno; 0: the calls wait instead of failing; -1: the process dies at the first one */
    _Atomic int64_t failed; /* how many calls have failed */
    char place[256];        /* the first call that failed */
};

static struct control *mapped_control;
static char root[PATH_MAX];
static size_t root_length;

static void map_control(void) {
    const char *file = getenv("SCANKV_FAILING_DISK"), *directory = getenv("SCANKV_FAILING_ROOT");
    if (!file || !directory) return;
    int fd = (int)syscall(SYS_openat, AT_FDCWD, file, O_RDWR | O_CLOEXEC);
    if (fd < 0) return;
    void *mapped = mmap(NULL, sizeof(struct control), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    syscall(SYS_close, fd);
    if (mapped == MAP_FAILED) return;
    root_length = strlen(directory);
    if (root_length >= sizeof root) return;
    strcpy(root, directory);
    mapped_control = mapped;
}

/* Not when the library is loaded: a forked process gets its variables later, and opens files before it has threads. */
static struct control *get_control(void) {
    if (!mapped_control) map_control();
    return mapped_control;
}
#define control get_control()

static int is_below_root(const char *path) {
    return path && !strncmp(path, root, root_length) && (path[root_length] == '/' || !path[root_length]);
}

/* RocksDB ignores errors of its own log, so failing there first would test nothing. */
static int is_log_of_rocksdb(const char *path) {
    const char *name = strrchr(path, '/');
    return name && !strncmp(name, "/LOG", 4) && name[4] != 'K';
}

/* Returns whether a call fails, with errno set: 1, or 2 for the first one of all. */
static int fails(int kind, const char *call, const char *path) {
    if (!control || !(control->kinds & kind) || !is_below_root(path)) return 0;
    int is_log = is_log_of_rocksdb(path);
    int64_t number = is_log ? control->calls : ++control->calls, first = control->first;
    if (!first || number < first) return 0;
    int is_first = !is_log && number == first;
    if (is_first) snprintf(control->place, sizeof control->place, "%s %s", call, path + root_length);
    control->failed++;
    if (control->error < 0) {
        control->first = 0; /* The process that is started in its place lives. */
        kill(getpid(), SIGKILL);
    }
    if (!control->error) { /* The call waits until the disk is healed. */
        while (control->first) usleep(1000);
        return 0;
    }
    errno = (int)control->error;
    return 1 + is_first;
}

static int fails_at(int kind, const char *call, int directory, const char *path) {
    if (!control || !path) return 0;
    if (path[0] == '/' || directory == AT_FDCWD) return fails(kind, call, path);
    char link[64], joined[PATH_MAX];
    snprintf(link, sizeof link, "/proc/self/fd/%d", directory);
    ssize_t length = readlink(link, joined, sizeof joined - 1);
    if (length <= 0) return 0;
    snprintf(joined + length, sizeof joined - (size_t)length, "/%s", path);
    return fails(kind, call, joined);
}

static int fails_fd(int kind, const char *call, int fd) {
    if (!control || !(control->kinds & kind)) return 0;
    char link[64], path[PATH_MAX];
    int saved = errno;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, sizeof path - 1);
    errno = saved;
    if (length <= 0 || path[0] != '/') return 0;
    path[length] = 0;
    return fails(kind, call, path);
}

#define NEXT(name) \
    static __typeof__(&name) next; \
    if (!next) next = (__typeof__(&name))dlsym(RTLD_NEXT, #name)

/* The first write that finds no space writes a part, as a real disk does. */
#define SHORTENED(how, length) ((how) == 2 && (control->kinds & SHORT) && (length) > 1)

ssize_t write(int fd, const void *data, size_t length) {
    NEXT(write);
    int how = fails_fd(GROWS, "write", fd);
    return how ? SHORTENED(how, length) ? next(fd, data, length / 2) : -1 : next(fd, data, length);
}

/* A full disk has the space of what a file contains already; a broken one fails there, too. */
static int overwrite_fails(int fd, int64_t end) {
    struct stat now;
    int is_full = control && (control->error == ENOSPC || control->error == EDQUOT);
    if (is_full && !fstat(fd, &now) && end <= now.st_size) return 0;
    return fails_fd(GROWS, "pwrite", fd);
}

#define PWRITE(name, offset_type) \
    ssize_t name(int fd, const void *data, size_t length, offset_type offset) { \
        NEXT(name); \
        int how = overwrite_fails(fd, (int64_t)offset + (int64_t)length); \
        return how ? SHORTENED(how, length) ? next(fd, data, length / 2, offset) : -1 : next(fd, data, length, offset); \
    }
PWRITE(pwrite, off_t)
PWRITE(pwrite64, off64_t)

ssize_t writev(int fd, const struct iovec *parts, int count) {
    NEXT(writev);
    return fails_fd(GROWS, "writev", fd) ? -1 : next(fd, parts, count);
}

#define PWRITEV(name, offset_type) \
    ssize_t name(int fd, const struct iovec *parts, int count, offset_type offset) { \
        NEXT(name); \
        return fails_fd(GROWS, "pwritev", fd) ? -1 : next(fd, parts, count, offset); \
    }
PWRITEV(pwritev, off_t)
PWRITEV(pwritev64, off64_t)

ssize_t read(int fd, void *data, size_t length) {
    NEXT(read);
    return fails_fd(READS, "read", fd) ? -1 : next(fd, data, length);
}

#define PREAD(name, offset_type) \
    ssize_t name(int fd, void *data, size_t length, offset_type offset) { \
        NEXT(name); \
        return fails_fd(READS, "pread", fd) ? -1 : next(fd, data, length, offset); \
    }
PREAD(pread, off_t)
PREAD(pread64, off64_t)

#define ON_FILE(name, kind) \
    int name(int fd) { \
        NEXT(name); \
        return fails_fd(kind, #name, fd) ? -1 : next(fd); \
    }
ON_FILE(fsync, SYNCS)
ON_FILE(fdatasync, SYNCS)

int sync_file_range(int fd, off64_t offset, off64_t length, unsigned flags) {
    NEXT(sync_file_range);
    return fails_fd(SYNCS, "sync_file_range", fd) ? -1 : next(fd, offset, length, flags);
}

#define FALLOCATE(name, offset_type) \
    int name(int fd, int mode, offset_type offset, offset_type length) { \
        NEXT(name); \
        return fails_fd(GROWS, "fallocate", fd) ? -1 : next(fd, mode, offset, length); \
    }
FALLOCATE(fallocate, off_t)
FALLOCATE(fallocate64, off64_t)

#define POSIX_FALLOCATE(name, offset_type) \
    int name(int fd, offset_type offset, offset_type length) { \
        NEXT(name); \
        return fails_fd(GROWS, "posix_fallocate", fd) ? (int)control->error : next(fd, offset, length); \
    }
POSIX_FALLOCATE(posix_fallocate, off_t)
POSIX_FALLOCATE(posix_fallocate64, off64_t)

#define FTRUNCATE(name, offset_type) \
    int name(int fd, offset_type length) { \
        NEXT(name); \
        struct stat now; \
        int grows = !fstat(fd, &now) && length > now.st_size; \
        return fails_fd(grows ? GROWS : REMOVES, "ftruncate", fd) ? -1 : next(fd, length); \
    }
FTRUNCATE(ftruncate, off_t)
FTRUNCATE(ftruncate64, off64_t)

/* A full disk has no space for a new name; a read-only one opens no file for writing either. */
static int open_fails(int directory, const char *path, int flags) {
    if (!control) return 0;
    int changes = (flags & O_ACCMODE) != O_RDONLY || flags & O_TRUNC;
    if (flags & O_CREAT && faccessat(directory, path, F_OK, 0)) return fails_at(GROWS, "create", directory, path);
    if (changes && control->error == EROFS) return fails_at(GROWS, "open", directory, path);
    return fails_at(READS, "open", directory, path);
}

#define MODE_OF(flags, mode) \
    mode_t mode = 0; \
    if ((flags) & (O_CREAT | O_TMPFILE)) { \
        va_list rest; \
        va_start(rest, flags); \
        mode = va_arg(rest, mode_t); \
        va_end(rest); \
    }

#define OPEN(name) \
    int name(const char *path, int flags, ...) { \
        NEXT(name); \
        MODE_OF(flags, mode) \
        return open_fails(AT_FDCWD, path, flags) ? -1 : next(path, flags, mode); \
    }
OPEN(open)
OPEN(open64)

#define OPENAT(name) \
    int name(int directory, const char *path, int flags, ...) { \
        NEXT(name); \
        MODE_OF(flags, mode) \
        return open_fails(directory, path, flags) ? -1 : next(directory, path, flags, mode); \
    }
OPENAT(openat)
OPENAT(openat64)

#define FOPEN(name) \
    FILE *name(const char *path, const char *mode) { \
        NEXT(name); \
        int flags = mode[0] == 'r' ? O_RDONLY : O_WRONLY | O_CREAT; \
        return open_fails(AT_FDCWD, path, flags) ? NULL : next(path, mode); \
    }
FOPEN(fopen)
FOPEN(fopen64)

int mkdir(const char *path, mode_t mode) {
    NEXT(mkdir);
    if (!faccessat(AT_FDCWD, path, F_OK, 0)) return next(path, mode); /* it fails without needing space */
    return fails(GROWS, "mkdir", path) ? -1 : next(path, mode);
}

int mkdirat(int directory, const char *path, mode_t mode) {
    NEXT(mkdirat);
    if (!faccessat(directory, path, F_OK, 0)) return next(directory, path, mode);
    return fails_at(GROWS, "mkdir", directory, path) ? -1 : next(directory, path, mode);
}

/* A rename within a directory mostly needs no space, so it fails only where links and removals do. */
int rename(const char *from, const char *to) {
    NEXT(rename);
    return fails(REMOVES, "rename", to) ? -1 : next(from, to);
}

int renameat(int a, const char *from, int b, const char *to) {
    NEXT(renameat);
    return fails_at(REMOVES, "rename", b, to) ? -1 : next(a, from, b, to);
}

int link(const char *from, const char *to) {
    NEXT(link);
    return fails(GROWS, "link", to) ? -1 : next(from, to);
}

int linkat(int a, const char *from, int b, const char *to, int flags) {
    NEXT(linkat);
    return fails_at(GROWS, "link", b, to) ? -1 : next(a, from, b, to, flags);
}

int unlink(const char *path) {
    NEXT(unlink);
    return fails(REMOVES, "unlink", path) ? -1 : next(path);
}

int unlinkat(int directory, const char *path, int flags) {
    NEXT(unlinkat);
    return fails_at(REMOVES, "unlink", directory, path) ? -1 : next(directory, path, flags);
}

int rmdir(const char *path) {
    NEXT(rmdir);
    return fails(REMOVES, "rmdir", path) ? -1 : next(path);
}

#define IS_FULL() (control && control->kinds & SPACE && control->first && control->calls >= control->first)

#define STATVFS(name, type, stats) \
    int name(type target, struct stats *result) { \
        NEXT(name); \
        int status = next(target, result); \
        if (!status && IS_FULL()) result->f_bfree = result->f_bavail = 0; \
        return status; \
    }
STATVFS(statvfs, const char *, statvfs)
STATVFS(statvfs64, const char *, statvfs64)
STATVFS(fstatvfs, int, statvfs)
STATVFS(fstatvfs64, int, statvfs64)
