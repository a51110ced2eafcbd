/* Writes down, in order, everything that a process does to the files below one directory.
 *
 * Preloaded into the process (LD_PRELOAD). Calls go through to the real file system; each one that
 * changes a file or a name, and each fsync, is appended to a journal once it has happened and before
 * the caller hears of it. tests/crash/disk_layer.py replays the journal and decides what a power cut
 * would have left.
 *
 *   DISK_JOURNAL_ROOT   absolute path of the directory
 *   DISK_JOURNAL_FILE   the journal, made or appended to; must not lie below the directory
 *   DISK_JOURNAL_FAULT  "eio N": the fsync number N (from 0) fails with EIO, its pages are dropped;
 *                       "enospc N M": writes and creations N to N+M-1 fail with ENOSPC, the first
 *                       of them, if it is a write, after half of its bytes;
 *                       "switch PATH": while the file PATH.eio exists each fsync fails with EIO,
 *                       while PATH.hang exists each fsync waits for its end
 *
 * What would change files in a way that is not modelled ends the process with a sentence.
 */
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
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

enum kind {
    OPEN = 1, CLOSE, WRITE, TRUNCATE, SYNC_BEGIN, SYNC_END, SYNC_FAILED, ALL_BEGIN, ALL_END,
    MKDIR, RENAME, UNLINK, DUPLICATE
};

/* Little-endian, as the machine is; disk_layer.py has the same layout. */
struct record {
    uint32_t magic;
    uint32_t kind;
    int32_t fd;
    int32_t flags;
    int64_t position;
    uint32_t path_size;
    uint32_t data_size;
};

#define MAGIC 0x4a4b5344u
#define FDS 65536
#define PARTS 1024

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static unsigned char tracked[FDS];
static char root[PATH_MAX];
static size_t root_size;
static int journal = -1;
static long syncs, allocations;
static long eio_at = -1, enospc_from = -1, enospc_to = -1;
static char eio_switch[PATH_MAX], hang_switch[PATH_MAX];

static void die(const char *what)
{
    dprintf(2, "disk_journal: %s is not modelled on files of %s\n", what, root);
    abort();
}

static void *next(const char *name)
{
    void *found = dlsym(RTLD_NEXT, name);
    if (!found) {
        dprintf(2, "disk_journal: there is no %s behind this one\n", name);
        abort();
    }
    return found;
}

#define REAL(name) \
    static __typeof__(&name) real; \
    if (!real) real = (__typeof__(&name))next(#name)

__attribute__((constructor)) static void begin(void)
{
    const char *directory = getenv("DISK_JOURNAL_ROOT");
    const char *file = getenv("DISK_JOURNAL_FILE");
    const char *fault = getenv("DISK_JOURNAL_FAULT");
    if (!directory || !file || strlen(directory) >= sizeof root)
        return;
    strcpy(root, directory);
    root_size = strlen(root);
    journal = (int)syscall(SYS_openat, AT_FDCWD, file, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC,
                           0600);
    if (journal < 0) {
        dprintf(2, "disk_journal: cannot open %s: %s\n", file, strerror(errno));
        abort();
    }
    long count = 0;
    if (fault && !strncmp(fault, "switch ", 7)) {
        snprintf(eio_switch, sizeof eio_switch, "%s.eio", fault + 7);
        snprintf(hang_switch, sizeof hang_switch, "%s.hang", fault + 7);
        return;
    }
    if (fault && sscanf(fault, "eio %ld", &eio_at) != 1 &&
        sscanf(fault, "enospc %ld %ld", &enospc_from, &count) == 2)
        enospc_to = enospc_from + count;
}

/* Return the path relative to the root ("" for itself), NULL if it lies elsewhere. */
static const char *below(const char *path)
{
    if (journal < 0 || !path || strncmp(path, root, root_size))
        return NULL;
    if (path[root_size] != '\0' && path[root_size] != '/')
        return NULL;
    if (strstr(path + root_size, "/.."))
        die("a path with ..");
    return path + root_size + (path[root_size] == '/');
}

static int is_tracked(int fd)
{
    return journal >= 0 && fd >= 0 && fd < FDS && tracked[fd];
}

static const char *below_at(int directory, const char *path)
{
    if (path && path[0] != '/' && is_tracked(directory))
        die("a path relative to a descriptor");
    return below(path);
}

/* Append one record; `parts` hold `size` bytes or more. The lock is held. */
static void note(enum kind kind, int fd, int flags, int64_t position, const char *path,
                 const struct iovec *parts, int count, size_t size)
{
    struct record record = {MAGIC, kind, fd, flags, position, path ? (uint32_t)strlen(path) : 0,
                            (uint32_t)size};
    struct iovec all[PARTS + 2];
    int used = 0;
    if (count > PARTS)
        die("a write of so many buffers");
    all[used++] = (struct iovec){&record, sizeof record};
    if (record.path_size)
        all[used++] = (struct iovec){(void *)path, record.path_size};
    for (int i = 0; i < count && size; i++) {
        size_t part = parts[i].iov_len < size ? parts[i].iov_len : size;
        if (part)
            all[used++] = (struct iovec){parts[i].iov_base, part};
        size -= part;
    }
    struct iovec *rest = all;
    while (used) {
        ssize_t done = syscall(SYS_writev, journal, rest, used > IOV_MAX ? IOV_MAX : used);
        if (done < 0) {
            dprintf(2, "disk_journal: cannot write the journal: %s\n", strerror(errno));
            abort();
        }
        while (used && (size_t)done >= rest->iov_len) {
            done -= (ssize_t)rest->iov_len;
            rest++;
            used--;
        }
        if (used) {
            rest->iov_base = (char *)rest->iov_base + done;
            rest->iov_len -= (size_t)done;
        }
    }
}

/* Say whether there is space for one more write or name. The lock is held. */
static int has_space(void)
{
    long number = allocations++;
    return number < enospc_from || number >= enospc_to;
}

/* -- opening ---------------------------------------------------------------------------------- */

static int opened(int directory, const char *path, int flags, mode_t mode)
{
    const char *name = below_at(directory, path);
    if (!name)
        return (int)syscall(SYS_openat, directory, path, flags, mode);
    pthread_mutex_lock(&lock);
    int fd = -1;
    /* Only making a name needs space; opening a file that is there does not. */
    if ((flags & O_CREAT) && faccessat(directory, path, F_OK, 0) && !has_space())
        errno = ENOSPC;
    else
        fd = (int)syscall(SYS_openat, directory, path, flags, mode);
    if (fd >= FDS)
        die("so many descriptors");
    if (fd >= 0) {
        tracked[fd] = 1;
        note(OPEN, fd, flags, 0, name, NULL, 0, 0);
    }
    pthread_mutex_unlock(&lock);
    return fd;
}

#define MODE(flags, mode) \
    do { \
        if ((flags) & (O_CREAT | __O_TMPFILE)) { \
            va_list arguments; \
            va_start(arguments, flags); \
            mode = (mode_t)va_arg(arguments, int); \
            va_end(arguments); \
        } \
    } while (0)

int open(const char *path, int flags, ...)
{
    mode_t mode = 0;
    MODE(flags, mode);
    return opened(AT_FDCWD, path, flags, mode);
}

int open64(const char *path, int flags, ...)
{
    mode_t mode = 0;
    MODE(flags, mode);
    return opened(AT_FDCWD, path, flags | O_LARGEFILE, mode);
}

int openat(int directory, const char *path, int flags, ...)
{
    mode_t mode = 0;
    MODE(flags, mode);
    return opened(directory, path, flags, mode);
}

int openat64(int directory, const char *path, int flags, ...)
{
    mode_t mode = 0;
    MODE(flags, mode);
    return opened(directory, path, flags | O_LARGEFILE, mode);
}

int creat(const char *path, mode_t mode)
{
    return opened(AT_FDCWD, path, O_CREAT | O_WRONLY | O_TRUNC, mode);
}

int close(int fd)
{
    REAL(close);
    if (!is_tracked(fd))
        return real(fd);
    pthread_mutex_lock(&lock);
    tracked[fd] = 0;
    note(CLOSE, fd, 0, 0, NULL, NULL, 0, 0);
    int result = real(fd);
    pthread_mutex_unlock(&lock);
    return result;
}

/* Python's mmap keeps a second descriptor. */
static int duplicated(int fd, int command, long least)
{
    pthread_mutex_lock(&lock);
    int copy = (int)syscall(SYS_fcntl, fd, command, least);
    if (copy >= FDS)
        die("so many descriptors");
    if (copy >= 0) {
        tracked[copy] = 1;
        note(DUPLICATE, copy, fd, 0, NULL, NULL, 0, 0);
    }
    pthread_mutex_unlock(&lock);
    return copy;
}

#define CONTROL(name) \
    int name(int fd, int command, ...) \
    { \
        va_list arguments; \
        va_start(arguments, command); \
        long argument = va_arg(arguments, long); \
        va_end(arguments); \
        if (is_tracked(fd) && (command == F_DUPFD || command == F_DUPFD_CLOEXEC)) \
            return duplicated(fd, command, argument); \
        return (int)syscall(SYS_fcntl, fd, command, argument); \
    }
CONTROL(fcntl)
CONTROL(fcntl64)

int dup(int fd)
{
    return is_tracked(fd) ? duplicated(fd, F_DUPFD, 0) : (int)syscall(SYS_dup, fd);
}

/* -- writing ---------------------------------------------------------------------------------- */

/* Write at `position`, or where the descriptor stands if that is negative. */
static ssize_t written(int fd, const struct iovec *parts, int count, off_t position)
{
    pthread_mutex_lock(&lock);
    int first = allocations == enospc_from;
    ssize_t result = -1;
    if (has_space()) {
        result = position < 0 ? syscall(SYS_writev, fd, parts, count)
                              : syscall(SYS_pwritev, fd, parts, count, position, 0);
    } else if (first && position >= 0 && count && parts[0].iov_len > 1) {
        result = syscall(SYS_pwrite64, fd, parts[0].iov_base, parts[0].iov_len / 2, position);
    } else {
        errno = ENOSPC;
    }
    if (result > 0) {
        int64_t at = position < 0 ? lseek(fd, 0, SEEK_CUR) - result : position;
        note(WRITE, fd, 0, at, NULL, parts, count, (size_t)result);
    }
    pthread_mutex_unlock(&lock);
    return result;
}

#define VECTOR(name, offset) \
    ssize_t name(int fd, const struct iovec *parts, int count, offset position) \
    { \
        if (!is_tracked(fd)) \
            return syscall(SYS_pwritev, fd, parts, count, position, 0); \
        return written(fd, parts, count, position); \
    }
VECTOR(pwritev, off_t)
VECTOR(pwritev64, off64_t)

#define VECTOR_FLAGS(name, offset) \
    ssize_t name(int fd, const struct iovec *parts, int count, offset position, int flags) \
    { \
        if (!is_tracked(fd)) \
            return syscall(SYS_pwritev2, fd, parts, count, position, 0, flags); \
        if (flags) \
            die("pwritev2 with flags"); \
        return written(fd, parts, count, position); \
    }
VECTOR_FLAGS(pwritev2, off_t)
VECTOR_FLAGS(pwritev64v2, off64_t)

#define PLAIN(name, offset) \
    ssize_t name(int fd, const void *data, size_t size, offset position) \
    { \
        if (!is_tracked(fd)) \
            return syscall(SYS_pwrite64, fd, data, size, position); \
        struct iovec part = {(void *)data, size}; \
        return written(fd, &part, 1, position); \
    }
PLAIN(pwrite, off_t)
PLAIN(pwrite64, off64_t)

ssize_t write(int fd, const void *data, size_t size)
{
    if (!is_tracked(fd))
        return syscall(SYS_write, fd, data, size);
    struct iovec part = {(void *)data, size};
    return written(fd, &part, 1, -1);
}

ssize_t writev(int fd, const struct iovec *parts, int count)
{
    if (!is_tracked(fd))
        return syscall(SYS_writev, fd, parts, count);
    return written(fd, parts, count, -1);
}

#define CUT(name, offset) \
    int name(int fd, offset size) \
    { \
        if (!is_tracked(fd)) \
            return (int)syscall(SYS_ftruncate, fd, size); \
        pthread_mutex_lock(&lock); \
        int result = (int)syscall(SYS_ftruncate, fd, size); \
        if (!result) \
            note(TRUNCATE, fd, 0, size, NULL, NULL, 0, 0); \
        pthread_mutex_unlock(&lock); \
        return result; \
    }
CUT(ftruncate, off_t)
CUT(ftruncate64, off64_t)

/* -- making durable --------------------------------------------------------------------------- */

static int64_t monotonic_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * (int64_t)1000000000 + now.tv_nsec;
}

/* What was written while the fsync ran may be left out of it: begin and end are two records, with
 * the time in place of a position. */
static int synced(int fd, long number)
{
    int all = number == SYS_syncfs;
    pthread_mutex_lock(&lock);
    int fails = syncs++ == eio_at || (*eio_switch && !access(eio_switch, F_OK));
    note(all ? ALL_BEGIN : SYNC_BEGIN, fd, 0, monotonic_ns(), NULL, NULL, 0, 0);
    pthread_mutex_unlock(&lock);
    while (*hang_switch && !access(hang_switch, F_OK))
        usleep(10000);
    int result = fails ? -1 : (int)syscall(number, fd);
    int error = fails ? EIO : errno;
    pthread_mutex_lock(&lock);
    enum kind kind = result ? SYNC_FAILED : all ? ALL_END : SYNC_END;
    note(kind, fd, all, monotonic_ns(), NULL, NULL, 0, 0);
    pthread_mutex_unlock(&lock);
    if (result)
        errno = error;
    return result;
}

int fsync(int fd)
{
    return is_tracked(fd) ? synced(fd, SYS_fsync) : (int)syscall(SYS_fsync, fd);
}

int fdatasync(int fd)
{
    return is_tracked(fd) ? synced(fd, SYS_fdatasync) : (int)syscall(SYS_fdatasync, fd);
}

int syncfs(int fd)
{
    return is_tracked(fd) ? synced(fd, SYS_syncfs) : (int)syscall(SYS_syncfs, fd);
}

/* -- names ------------------------------------------------------------------------------------ */

static int made(int directory, const char *path, mode_t mode)
{
    const char *name = below_at(directory, path);
    if (!name)
        return (int)syscall(SYS_mkdirat, directory, path, mode);
    pthread_mutex_lock(&lock);
    int result = -1;
    if (faccessat(directory, path, F_OK, 0) && !has_space())
        errno = ENOSPC;
    else
        result = (int)syscall(SYS_mkdirat, directory, path, mode);
    if (!result)
        note(MKDIR, 0, 0, 0, name, NULL, 0, 0);
    pthread_mutex_unlock(&lock);
    return result;
}

int mkdir(const char *path, mode_t mode)
{
    return made(AT_FDCWD, path, mode);
}

int mkdirat(int directory, const char *path, mode_t mode)
{
    return made(directory, path, mode);
}

static int renamed(int from, const char *path, int to, const char *target, unsigned flags)
{
    const char *source = below_at(from, path), *name = below_at(to, target);
    if (!source && !name)
        return (int)syscall(SYS_renameat2, from, path, to, target, flags);
    if (!source || !name || flags)
        die("a rename with flags, or into or out of the directory");
    pthread_mutex_lock(&lock);
    int result = (int)syscall(SYS_renameat2, from, path, to, target, 0);
    if (!result) {
        struct iovec part = {(void *)name, strlen(name)};
        note(RENAME, 0, 0, 0, source, &part, 1, part.iov_len);
    }
    pthread_mutex_unlock(&lock);
    return result;
}

int rename(const char *path, const char *target)
{
    return renamed(AT_FDCWD, path, AT_FDCWD, target, 0);
}

int renameat(int from, const char *path, int to, const char *target)
{
    return renamed(from, path, to, target, 0);
}

int renameat2(int from, const char *path, int to, const char *target, unsigned flags)
{
    return renamed(from, path, to, target, flags);
}

static int unlinked(int directory, const char *path, int flags)
{
    const char *name = below_at(directory, path);
    if (!name)
        return (int)syscall(SYS_unlinkat, directory, path, flags);
    if (flags)
        die("removing a directory");
    pthread_mutex_lock(&lock);
    int result = (int)syscall(SYS_unlinkat, directory, path, 0);
    if (!result)
        note(UNLINK, 0, 0, 0, name, NULL, 0, 0);
    pthread_mutex_unlock(&lock);
    return result;
}

int unlink(const char *path)
{
    return unlinked(AT_FDCWD, path, 0);
}

int unlinkat(int directory, const char *path, int flags)
{
    return unlinked(directory, path, flags);
}

int rmdir(const char *path)
{
    return unlinked(AT_FDCWD, path, AT_REMOVEDIR);
}

/* -- what is not modelled --------------------------------------------------------------------- */

static void refuse_path(const char *path, const char *what)
{
    if (below(path))
        die(what);
}

static void refuse(int fd, const char *what)
{
    if (is_tracked(fd))
        die(what);
}

int link(const char *path, const char *target)
{
    REAL(link);
    refuse_path(target, "link");
    return real(path, target);
}

int symlink(const char *path, const char *target)
{
    REAL(symlink);
    refuse_path(target, "symlink");
    return real(path, target);
}

int truncate(const char *path, off_t size)
{
    REAL(truncate);
    refuse_path(path, "truncate");
    return real(path, size);
}

#define ALLOCATE(name, offset) \
    int name(int fd, int mode, offset position, offset size) \
    { \
        REAL(name); \
        refuse(fd, "fallocate"); \
        return real(fd, mode, position, size); \
    }
ALLOCATE(fallocate, off_t)
ALLOCATE(fallocate64, off64_t)

#define POSIX_ALLOCATE(name, offset) \
    int name(int fd, offset position, offset size) \
    { \
        REAL(name); \
        refuse(fd, "posix_fallocate"); \
        return real(fd, position, size); \
    }
POSIX_ALLOCATE(posix_fallocate, off_t)
POSIX_ALLOCATE(posix_fallocate64, off64_t)

ssize_t copy_file_range(int from, off64_t *position, int to, off64_t *target, size_t size,
                        unsigned flags)
{
    REAL(copy_file_range);
    refuse(to, "copy_file_range");
    return real(from, position, to, target, size, flags);
}

int dup2(int fd, int target)
{
    REAL(dup2);
    refuse(fd, "dup2");
    return real(fd, target);
}

int dup3(int fd, int target, int flags)
{
    REAL(dup3);
    refuse(fd, "dup3");
    return real(fd, target, flags);
}

static void refuse_mapping(int fd, int protection, int flags)
{
    if ((protection & PROT_WRITE) && (flags & MAP_SHARED))
        refuse(fd, "a mapping that can be written");
}

void *mmap(void *address, size_t size, int protection, int flags, int fd, off_t position)
{
    refuse_mapping(fd, protection, flags);
    return (void *)syscall(SYS_mmap, address, size, protection, flags, fd, position);
}

void *mmap64(void *address, size_t size, int protection, int flags, int fd, off64_t position)
{
    refuse_mapping(fd, protection, flags);
    return (void *)syscall(SYS_mmap, address, size, protection, flags, fd, position);
}
