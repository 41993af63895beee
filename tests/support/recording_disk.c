/* Records every change of a directory, in order: preloaded into a server, it stands before the C library.
 *
 * Each change below $SCANKV_RECORDED_ROOT is appended to the file $SCANKV_RECORDED_LOG. A mutex in the file
 * $SCANKV_RECORDED_MUTEX, which all processes map, makes the order of the records that of the changes.
 * tests/support/recording_disk.py reads the records. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

struct __attribute__((packed)) record {
    char type;
    uint64_t inode;
    uint64_t number; /* an offset, a size, or which sync it is */
    uint32_t first, second; /* the bytes of what follows: a path or data, and a second path */
};

struct shared {
    int is_ready;
    pthread_mutex_t mutex;
    uint64_t syncs;
};

static struct shared *shared;
static int log_fd = -1;
static char root[PATH_MAX];
static size_t root_length;
static pthread_mutex_t starting = PTHREAD_MUTEX_INITIALIZER;

static void start_recording(void) {
    const char *log = getenv("SCANKV_RECORDED_LOG"), *file = getenv("SCANKV_RECORDED_MUTEX"),
               *directory = getenv("SCANKV_RECORDED_ROOT");
    if (!log || !file || !directory || strlen(directory) >= sizeof root) return;
    pthread_mutex_lock(&starting);
    if (!shared) {
        int fd = (int)syscall(SYS_openat, AT_FDCWD, file, O_RDWR | O_CLOEXEC);
        struct shared *mapped = mmap(NULL, sizeof *mapped, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        syscall(SYS_close, fd);
        /* A high number, so that the process under test does not notice it. */
        int opened = (int)syscall(SYS_openat, AT_FDCWD, log, O_WRONLY | O_APPEND | O_CLOEXEC);
        log_fd = fcntl(opened, F_DUPFD_CLOEXEC, 900);
        syscall(SYS_close, opened);
        if (mapped == MAP_FAILED || log_fd < 0) abort();
        if (!mapped->is_ready) { /* by the first process, which has no threads yet */
            pthread_mutexattr_t how;
            pthread_mutexattr_init(&how);
            pthread_mutexattr_setpshared(&how, PTHREAD_PROCESS_SHARED);
            pthread_mutexattr_setrobust(&how, PTHREAD_MUTEX_ROBUST);
            pthread_mutex_init(&mapped->mutex, &how);
            mapped->is_ready = 1;
        }
        strcpy(root, directory);
        root_length = strlen(root);
        shared = mapped;
    }
    pthread_mutex_unlock(&starting);
}

/* Not when the library is loaded: a forked process gets its variables later. */
static int is_recording(void) {
    if (!shared) start_recording();
    return shared != NULL;
}

static void lock(void) {
    if (pthread_mutex_lock(&shared->mutex) == EOWNERDEAD) pthread_mutex_consistent(&shared->mutex);
}

static void unlock(void) { pthread_mutex_unlock(&shared->mutex); }

static void append(char type, uint64_t inode, uint64_t number, const void *a, size_t first, const void *b, size_t second) {
    struct record head = {type, inode, number, (uint32_t)first, (uint32_t)second};
    struct iovec parts[] = {{&head, sizeof head}, {(void *)a, first}, {(void *)b, second}};
    if (syscall(SYS_writev, log_fd, parts, 3) != (long)(sizeof head + first + second)) abort();
}

static int is_below_root(const char *path) {
    return path && !strncmp(path, root, root_length) && path[root_length] == '/';
}

/* Returns the path below the root, or NULL. */
static const char *find_path(int directory, const char *path, char *joined) {
    if (!path || !is_recording()) return NULL;
    if (path[0] == '/') return is_below_root(path) ? path + root_length : NULL;
    char link[64];
    int saved = errno;
    if (directory == AT_FDCWD) strcpy(link, "/proc/self/cwd");
    else snprintf(link, sizeof link, "/proc/self/fd/%d", directory);
    ssize_t length = readlink(link, joined, PATH_MAX - 1);
    errno = saved;
    if (length <= 0) return NULL;
    snprintf(joined + length, PATH_MAX - (size_t)length, "/%s", path);
    return is_below_root(joined) ? joined + root_length : NULL;
}

/* Returns the number of the inode of an open file or directory below the root, or 0. */
static uint64_t find_inode(int fd) {
    if (!is_recording()) return 0;
    char link[64], path[PATH_MAX];
    struct stat status;
    int saved = errno;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, sizeof path - 1);
    path[length > 0 ? length : 0] = 0;
    int is_other = !is_below_root(path) && strcmp(path, root);
    uint64_t inode = is_other || fstat(fd, &status) ? 0 : status.st_ino;
    errno = saved;
    return inode;
}

#define NEXT(name) \
    static __typeof__(&name) next; \
    if (!next) next = (__typeof__(&name))dlsym(RTLD_NEXT, #name)

/* A fork closes the files of its parent, but goes on recording. */
int close(int fd) {
    NEXT(close);
    return fd >= 0 && fd == log_fd ? 0 : next(fd);
}

/* The writes of an open file, whose position a write without an offset has moved. */

#define WRITTEN(fd, inode, data, length) \
    append('w', inode, (uint64_t)lseek(fd, 0, SEEK_CUR) - (uint64_t)(length), data, (size_t)(length), NULL, 0)

ssize_t write(int fd, const void *data, size_t length) {
    NEXT(write);
    uint64_t inode = find_inode(fd);
    if (!inode) return next(fd, data, length);
    lock();
    ssize_t done = next(fd, data, length);
    if (done > 0) WRITTEN(fd, inode, data, done);
    unlock();
    return done;
}

#define PWRITE(name, offset_type) \
    ssize_t name(int fd, const void *data, size_t length, offset_type offset) { \
        NEXT(name); \
        uint64_t inode = find_inode(fd); \
        if (!inode) return next(fd, data, length, offset); \
        lock(); \
        ssize_t done = next(fd, data, length, offset); \
        if (done > 0) append('w', inode, (uint64_t)offset, data, (size_t)done, NULL, 0); \
        unlock(); \
        return done; \
    }
PWRITE(pwrite, off_t)
PWRITE(pwrite64, off64_t)

/* What these have written is read back. */
static void append_written(int fd, uint64_t inode, uint64_t offset, ssize_t length) {
    char path[64], *data = malloc((size_t)length);
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    int reading = (int)syscall(SYS_openat, AT_FDCWD, path, O_RDONLY | O_CLOEXEC);
    if (!data || pread(reading, data, (size_t)length, (off_t)offset) != length) abort();
    syscall(SYS_close, reading);
    append('w', inode, offset, data, (size_t)length, NULL, 0);
    free(data);
}

#define MOVING(name, call, ...) \
    ssize_t name(__VA_ARGS__) { \
        NEXT(name); \
        uint64_t inode = find_inode(fd); \
        if (!inode) return call; \
        lock(); \
        ssize_t done = call; \
        if (done > 0) append_written(fd, inode, (uint64_t)(lseek(fd, 0, SEEK_CUR) - done), done); \
        unlock(); \
        return done; \
    }
MOVING(writev, next(fd, parts, count), int fd, const struct iovec *parts, int count)
MOVING(sendfile, next(fd, from, offset, length), int fd, int from, off_t *offset, size_t length)
MOVING(sendfile64, next(fd, from, offset, length), int fd, int from, off64_t *offset, size_t length)

ssize_t copy_file_range(int from, off64_t *at, int fd, off64_t *to, size_t length, unsigned flags) {
    NEXT(copy_file_range);
    if (!find_inode(fd)) return next(from, at, fd, to, length, flags);
    errno = ENOSYS; /* Callers write instead. */
    return -1;
}

#define PWRITEV(name, offset_type) \
    ssize_t name(int fd, const struct iovec *parts, int count, offset_type offset) { \
        NEXT(name); \
        uint64_t inode = find_inode(fd); \
        if (!inode) return next(fd, parts, count, offset); \
        lock(); \
        ssize_t done = next(fd, parts, count, offset); \
        if (done > 0) append_written(fd, inode, (uint64_t)offset, done); \
        unlock(); \
        return done; \
    }
PWRITEV(pwritev, off_t)
PWRITEV(pwritev64, off64_t)

/* Whether a call that may change the size has changed it is seen afterwards. */
#define RESIZING(name, call, ...) \
    int name(__VA_ARGS__) { \
        NEXT(name); \
        uint64_t inode = find_inode(fd); \
        if (!inode) return call; \
        struct stat before, after; \
        lock(); \
        fstat(fd, &before); \
        int status = call; \
        if (!status && !fstat(fd, &after) && after.st_size != before.st_size) \
            append('t', inode, (uint64_t)after.st_size, NULL, 0, NULL, 0); \
        unlock(); \
        return status; \
    }
RESIZING(ftruncate, next(fd, length), int fd, off_t length)
RESIZING(ftruncate64, next(fd, length), int fd, off64_t length)
RESIZING(fallocate, next(fd, mode, offset, length), int fd, int mode, off_t offset, off_t length)
RESIZING(fallocate64, next(fd, mode, offset, length), int fd, int mode, off64_t offset, off64_t length)
RESIZING(posix_fallocate, next(fd, offset, length), int fd, off_t offset, off_t length)
RESIZING(posix_fallocate64, next(fd, offset, length), int fd, off64_t offset, off64_t length)

#define TRUNCATE(name, offset_type) \
    int name(const char *path, offset_type length) { \
        NEXT(name); \
        char joined[PATH_MAX]; \
        if (!find_path(AT_FDCWD, path, joined)) return next(path, length); \
        struct stat now; \
        lock(); \
        int status = next(path, length); \
        if (!status && !stat(path, &now)) append('t', now.st_ino, (uint64_t)length, NULL, 0, NULL, 0); \
        unlock(); \
        return status; \
    }
TRUNCATE(truncate, off_t)
TRUNCATE(truncate64, off64_t)

/* What a sync makes durable is what was there when it began. */
#define SYNC(name) \
    int name(int fd) { \
        NEXT(name); \
        uint64_t inode = find_inode(fd); \
        if (!inode) return next(fd); \
        lock(); \
        uint64_t number = ++shared->syncs; \
        append('f', inode, number, NULL, 0, NULL, 0); \
        unlock(); \
        int status = next(fd); \
        if (!status) { \
            lock(); \
            append('F', inode, number, NULL, 0, NULL, 0); \
            unlock(); \
        } \
        return status; \
    }
SYNC(fsync)
SYNC(fdatasync)

#define MODE_OF(flags, mode) \
    mode_t mode = 0; \
    if ((flags) & (O_CREAT | O_TMPFILE)) { \
        va_list rest; \
        va_start(rest, flags); \
        mode = va_arg(rest, mode_t); \
        va_end(rest); \
    }

static void opened(int fd, const char *path, int flags, int existed, off_t size) {
    struct stat now;
    if (fd < 0 || fstat(fd, &now)) return;
    if (!existed) append('c', now.st_ino, 0, path, strlen(path), NULL, 0);
    else if (flags & O_TRUNC && size) append('t', now.st_ino, 0, NULL, 0, NULL, 0);
}

#define OPEN(name, directory, call, ...) \
    int name(__VA_ARGS__, int flags, ...) { \
        NEXT(name); \
        MODE_OF(flags, mode) \
        char joined[PATH_MAX]; \
        const char *found = flags & (O_CREAT | O_TRUNC) && (flags & O_TMPFILE) != O_TMPFILE \
            ? find_path(directory, path, joined) : NULL; \
        if (!found) return call; \
        struct stat before; \
        lock(); \
        int saved = errno, existed = !fstatat(directory, path, &before, 0); \
        errno = saved; \
        int fd = call; \
        opened(fd, found, flags, existed, existed ? before.st_size : 0); \
        unlock(); \
        return fd; \
    }
OPEN(open, AT_FDCWD, next(path, flags, mode), const char *path)
OPEN(open64, AT_FDCWD, next(path, flags, mode), const char *path)
OPEN(openat, at, next(at, path, flags, mode), int at, const char *path)
OPEN(openat64, at, next(at, path, flags, mode), int at, const char *path)

/* The changes of entries: the paths of both are below the root, as nothing is moved out of it. */
#define ENTRY(name, type, directory, call, ...) \
    int name(__VA_ARGS__) { \
        NEXT(name); \
        char joined[PATH_MAX]; \
        const char *found = find_path(directory, path, joined); \
        if (!found) return call; \
        struct stat now; \
        lock(); \
        int status = call; \
        uint64_t inode = type == 'm' && !status && !fstatat(directory, path, &now, 0) ? now.st_ino : 0; \
        if (!status) append(type, inode, 0, found, strlen(found), NULL, 0); \
        unlock(); \
        return status; \
    }
ENTRY(mkdir, 'm', AT_FDCWD, next(path, mode), const char *path, mode_t mode)
ENTRY(mkdirat, 'm', at, next(at, path, mode), int at, const char *path, mode_t mode)
ENTRY(unlink, 'u', AT_FDCWD, next(path), const char *path)
ENTRY(rmdir, 'u', AT_FDCWD, next(path), const char *path)
ENTRY(unlinkat, 'u', at, next(at, path, flags), int at, const char *path, int flags)
ENTRY(remove, 'u', AT_FDCWD, next(path), const char *path)

#define TWO_ENTRIES(name, type, from_directory, to_directory, call, ...) \
    int name(__VA_ARGS__) { \
        NEXT(name); \
        char first[PATH_MAX], second[PATH_MAX]; \
        const char *source = find_path(from_directory, from, first), *target = find_path(to_directory, to, second); \
        if (!source || !target) return call; \
        lock(); \
        int status = call; \
        if (!status) append(type, 0, 0, source, strlen(source), target, strlen(target)); \
        unlock(); \
        return status; \
    }
TWO_ENTRIES(rename, 'r', AT_FDCWD, AT_FDCWD, next(from, to), const char *from, const char *to)
TWO_ENTRIES(renameat, 'r', a, b, next(a, from, b, to), int a, const char *from, int b, const char *to)
TWO_ENTRIES(renameat2, 'r', a, b, next(a, from, b, to, flags), int a, const char *from, int b, const char *to, unsigned flags)
TWO_ENTRIES(link, 'l', AT_FDCWD, AT_FDCWD, next(from, to), const char *from, const char *to)
TWO_ENTRIES(linkat, 'l', a, b, next(a, from, b, to, flags), int a, const char *from, int b, const char *to, int flags)
