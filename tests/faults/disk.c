/* A shim under libc (LD_PRELOAD) for everything a process does to the files below one directory.
 *
 * Owns the trace file and the failure rules. Knows nothing of headrace: what the traced operations
 * mean, and what a disk may forget of them, is the business of disk.py, which also sets
 *
 *   HR_DISK_ROOT    the directory, as realpath
 *   HR_DISK_TRACE   the trace file, outside of it; unset: no tracing
 *   HR_DISK_FAIL    failure rules, one a line: "kind nth times error glob"; unset: no failures
 *
 * One trace holds all processes of a run in one order: each operation and its record happen under one
 * lock (a mutex, and flock between processes), only syncs run outside of it, between two records.
 * Nothing is remembered per file descriptor: /proc/self/fd names the file, whoever opened it. */

#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

_Static_assert(sizeof(off_t) == 8, "64-bit only: the *64 functions are aliases");

/* The real operations, as system calls: no dlsym, so usable before any constructor has run. */
#define SYS(name, ...) syscall(SYS_##name, __VA_ARGS__)

/* -- state ---------------------------------------------------------------------------------------- */

enum op { OPEN = 1, CREATE, WRITE, TRUNCATE, ZERO, SYNC_BEGIN, SYNC_END, UNLINK, RENAME, LINK, MKDIR, MARK, UNMODELLED };

struct record { /* then path_bytes of path, then data up to total_bytes; disk.py reads the same layout */
    uint32_t total_bytes;
    uint16_t op;
    uint16_t path_bytes;
    int64_t pid;
    uint64_t inode;
    int64_t a; /* offset, size, or number of the sync */
    int64_t b; /* length, or errno of the sync */
};

struct rule {
    char kind[16];
    long nth;   /* the first call that fails, from 1 */
    long times; /* how many fail from there on, 0: for ever */
    int error;  /* errno, or SHORT */
    char glob[256];
    long seen;
};
enum { SHORT = -1, RULES_MAX = 16, TRACE_HEADER_BYTES = 4096, TRACE_FD_MIN = 900 };

static char root[PATH_MAX];
static size_t root_bytes;
static int trace_fd = -1;
static volatile uint64_t *trace_bytes; /* in the shared first page: a record torn by SIGKILL is written over */
static struct rule rules[RULES_MAX];
static int rule_count;
static long fired;
static int64_t sync_number;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;

static void die(const char *what) {
    dprintf(2, "disk shim: %s: %s\n", what, strerror(errno));
    SYS(exit_group, 97);
    __builtin_unreachable();
}

static void lock(void) {
    pthread_mutex_lock(&mutex);
    if (trace_fd >= 0)
        while (flock(trace_fd, LOCK_EX) && errno == EINTR) {}
}

static void unlock(void) {
    int saved = errno;
    if (trace_fd >= 0) flock(trace_fd, LOCK_UN);
    pthread_mutex_unlock(&mutex);
    errno = saved;
}

static void open_trace(void) {
    const char *path = getenv("HR_DISK_TRACE");
    if (!path || !*path) return;
    int low = SYS(openat, AT_FDCWD, path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (low < 0) die(path);
    trace_fd = fcntl(low, F_DUPFD_CLOEXEC, TRACE_FD_MIN); /* out of the program's way */
    if (trace_fd < 0) die("fcntl(F_DUPFD_CLOEXEC)");
    SYS(close, low);
    flock(trace_fd, LOCK_EX);
    struct stat st;
    if (fstat(trace_fd, &st)) die("fstat");
    int fresh = st.st_size < TRACE_HEADER_BYTES;
    if (fresh && SYS(ftruncate, trace_fd, (off_t)TRACE_HEADER_BYTES)) die("ftruncate");
    void *page = (void *)SYS(mmap, NULL, TRACE_HEADER_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, trace_fd, 0);
    if (page == MAP_FAILED) die("mmap");
    trace_bytes = page;
    if (fresh) *trace_bytes = TRACE_HEADER_BYTES;
    flock(trace_fd, LOCK_UN);
}

static void set_rules(const char *text) { /* under lock, or before there are threads */
    rule_count = 0;
    while (text && *text) {
        struct rule *r = &rules[rule_count];
        if (rule_count == RULES_MAX ||
            sscanf(text, "%15s %ld %ld %d %255[^\n]", r->kind, &r->nth, &r->times, &r->error, r->glob) != 5) {
            errno = EINVAL;
            die("HR_DISK_FAIL");
        }
        r->seen = 0;
        rule_count++;
        const char *newline = strchr(text, '\n');
        text = newline ? newline + 1 : NULL;
    }
}

static void before_fork(void) { pthread_mutex_lock(&mutex); }
static void in_parent(void) { pthread_mutex_unlock(&mutex); }
static void in_child(void) { /* its own open file description, else flock would not keep it from its parent */
    if (trace_fd >= 0) {
        SYS(close, trace_fd);
        munmap((void *)trace_bytes, TRACE_HEADER_BYTES);
        open_trace();
    }
    pthread_mutex_unlock(&mutex);
}

/* A process that is forked with another environment than its parent begins calls this itself. */
__attribute__((constructor)) void hr_start(void) {
    const char *dir = getenv("HR_DISK_ROOT");
    if (!dir || !*dir) return;
    open_trace();
    set_rules(getenv("HR_DISK_FAIL"));
    pthread_atfork(before_fork, in_parent, in_child);
    snprintf(root, sizeof root, "%s", dir);
    root_bytes = strlen(root); /* last: from here on the shim is at work */
}

/* -- which file ------------------------------------------------------------------------------------ */

/* The path relative to the root ("" for the root itself), or NULL when it is not below the root. */
static const char *below_root(const char *path) {
    if (!root_bytes || strncmp(path, root, root_bytes)) return NULL;
    if (path[root_bytes] == 0) return path + root_bytes;
    return path[root_bytes] == '/' ? path + root_bytes + 1 : NULL;
}

static const char *below_root_fd(int fd, char *buffer) {
    if (!root_bytes || fd < 0) return NULL;
    int saved = errno;
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t n = SYS(readlinkat, AT_FDCWD, link, buffer, PATH_MAX - 1);
    errno = saved;
    if (n < 0) return NULL;
    buffer[n] = 0;
    const char *gone = " (deleted)";
    size_t gone_bytes = strlen(gone);
    if ((size_t)n > gone_bytes && !strcmp(buffer + n - gone_bytes, gone)) buffer[n - gone_bytes] = 0;
    return below_root(buffer);
}

/* Links are followed in all but the last component, as open(O_CREAT), rename and unlink see a path. */
static const char *below_root_at(int dirfd, const char *path, char *buffer) {
    if (!root_bytes) return NULL;
    int saved = errno;
    char whole[2 * PATH_MAX], parent[PATH_MAX];
    const char *found = NULL;
    if (path[0] == '/') {
        snprintf(whole, sizeof whole, "%s", path);
    } else {
        char at[64] = "/proc/self/cwd";
        if (dirfd != AT_FDCWD) snprintf(at, sizeof at, "/proc/self/fd/%d", dirfd);
        ssize_t n = SYS(readlinkat, AT_FDCWD, at, parent, sizeof parent - 1);
        if (n < 0) goto out;
        parent[n] = 0;
        snprintf(whole, sizeof whole, "%s/%s", parent, path);
    }
    size_t n = strlen(whole);
    while (n > 1 && whole[n - 1] == '/') whole[--n] = 0;
    char *slash = strrchr(whole, '/');
    if (!slash) goto out;
    char name[NAME_MAX + 1];
    snprintf(name, sizeof name, "%s", slash + 1);
    slash[slash == whole] = 0;
    if (!realpath(whole, parent)) goto out;
    int written = snprintf(buffer, PATH_MAX, "%s/%s", strcmp(parent, "/") ? parent : "", name);
    found = written < PATH_MAX ? below_root(buffer) : NULL;
out:
    errno = saved;
    return found;
}

static uint64_t inode_of(int fd) {
    struct stat st;
    return fstat(fd, &st) ? 0 : st.st_ino;
}

/* -- trace and failures, under lock ------------------------------------------------------------------ */

static void record(enum op op, const char *path, uint64_t inode, int64_t a, int64_t b, const void *data, size_t bytes) {
    if (trace_fd < 0) return;
    int saved = errno;
    size_t path_bytes = path ? strlen(path) : 0;
    struct record head = {sizeof head + path_bytes + bytes, op, path_bytes, getpid(), inode, a, b};
    struct iovec parts[] = {{&head, sizeof head}, {(void *)path, path_bytes}, {(void *)data, bytes}};
    if (SYS(pwritev, trace_fd, parts, 3, (off_t)*trace_bytes, 0) != (long)head.total_bytes) die("writing the trace");
    *trace_bytes += head.total_bytes;
    errno = saved;
}

/* 0: go on. An errno: fail with it (errno is set). SHORT: write only half. */
static int failure(const char *kind, const char *path) {
    int error = 0;
    for (int i = 0; i < rule_count; i++) {
        struct rule *r = &rules[i];
        if (strcmp(r->kind, kind) || fnmatch(r->glob, path, 0)) continue;
        r->seen++;
        if (!error && r->seen >= r->nth && (!r->times || r->seen < r->nth + r->times)) error = r->error;
    }
    if (error) fired++;
    if (error > 0) errno = error;
    return error;
}

static int failure_locked(const char *kind, const char *path) {
    if (!rule_count) return 0;
    lock();
    int error = failure(kind, path);
    unlock();
    return error;
}

/* -- ending ------------------------------------------------------------------------------------------ */

void _exit(int status) { /* not while another thread is between an operation and its record */
    lock();
    SYS(exit_group, status);
    __builtin_unreachable();
}

/* -- called by the program through ctypes ------------------------------------------------------------ */

void hr_mark(const char *text) {
    lock();
    record(MARK, NULL, 0, 0, 0, text, strlen(text));
    unlock();
}

void hr_fail(const char *text) { /* replaces the rules; counting starts now */
    lock();
    set_rules(text);
    fired = 0;
    unlock();
}

long hr_fired(void) { return fired; }

/* -- opening ---------------------------------------------------------------------------------------- */

static void record_open(enum op op, int fd, int flags) {
    char buffer[PATH_MAX];
    struct stat st;
    const char *path = fd < 0 ? NULL : below_root_fd(fd, buffer);
    if (!path || fstat(fd, &st) || !st.st_nlink) return;
    if ((flags & (O_SYNC | O_DSYNC)) || (flags & O_TMPFILE) == O_TMPFILE)
        record(UNMODELLED, path, st.st_ino, 0, 0, "open(O_SYNC or O_TMPFILE)", 25);
    record(op, path, st.st_ino, 0, 0, NULL, 0);
    if (op == OPEN && (flags & O_TRUNC)) record(TRUNCATE, NULL, st.st_ino, 0, 0, NULL, 0);
}

static int open_below(int dirfd, const char *path, int flags, mode_t mode) {
    char buffer[PATH_MAX];
    int changes = (flags & (O_CREAT | O_TRUNC)) != 0;
    const char *wanted = changes || rule_count ? below_root_at(dirfd, path, buffer) : NULL; /* not for all of Python's imports */
    if (wanted && failure_locked("open", wanted) > 0) return -1;
    if (wanted && changes) {
        lock();
        struct stat st;
        enum op op = fstatat(AT_FDCWD, buffer, &st, 0) ? CREATE : OPEN;
        int fd = SYS(openat, dirfd, path, flags, mode);
        record_open(op, fd, flags);
        unlock();
        return fd;
    }
    int fd = SYS(openat, dirfd, path, flags, mode); /* without the lock: opening a pipe may wait for ever */
    if (fd >= 0 && trace_fd >= 0 && below_root_fd(fd, buffer)) {
        lock();
        record_open(OPEN, fd, flags);
        unlock();
    }
    return fd;
}

static mode_t mode_argument(int flags, va_list rest) {
    return (flags & O_CREAT) || (flags & O_TMPFILE) == O_TMPFILE ? va_arg(rest, mode_t) : 0;
}

int open(const char *path, int flags, ...) {
    va_list rest;
    va_start(rest, flags);
    mode_t mode = mode_argument(flags, rest);
    va_end(rest);
    return open_below(AT_FDCWD, path, flags, mode);
}

int openat(int dirfd, const char *path, int flags, ...) {
    va_list rest;
    va_start(rest, flags);
    mode_t mode = mode_argument(flags, rest);
    va_end(rest);
    return open_below(dirfd, path, flags, mode);
}

int creat(const char *path, mode_t mode) { return open_below(AT_FDCWD, path, O_CREAT | O_WRONLY | O_TRUNC, mode); }

/* -- content ------------------------------------------------------------------------------------------ */

enum { AT_POSITION = -1 };

static ssize_t write_below(int fd, const void *data, size_t bytes, off_t offset) {
    char buffer[PATH_MAX];
    const char *path = below_root_fd(fd, buffer);
    if (!path) return offset == AT_POSITION ? SYS(write, fd, data, bytes) : SYS(pwrite64, fd, data, bytes, offset);
    lock();
    ssize_t n = -1;
    int error = failure("write", path);
    if (error <= 0) {
        if (error == SHORT && bytes > 1) bytes /= 2;
        n = offset == AT_POSITION ? SYS(write, fd, data, bytes) : SYS(pwrite64, fd, data, bytes, offset);
        if (n > 0) {
            struct stat st;
            fstat(fd, &st);
            if (offset == AT_POSITION) offset = lseek(fd, 0, SEEK_CUR) - n;
            else if (fcntl(fd, F_GETFL) & O_APPEND) offset = st.st_size - n; /* Linux appends, whatever the offset */
            record(WRITE, NULL, st.st_ino, offset, n, data, n);
        }
    }
    unlock();
    return n;
}

static ssize_t writev_below(int fd, const struct iovec *parts, int count, off_t offset) {
    size_t bytes = 0;
    for (int i = 0; i < count; i++) bytes += parts[i].iov_len;
    char *flat = malloc(bytes ? bytes : 1), *end = flat;
    if (!flat) return -1;
    for (int i = 0; i < count; i++) end = (char *)mempcpy(end, parts[i].iov_base, parts[i].iov_len);
    ssize_t n = write_below(fd, flat, bytes, offset);
    int saved = errno;
    free(flat);
    errno = saved;
    return n;
}

ssize_t write(int fd, const void *data, size_t bytes) { return write_below(fd, data, bytes, AT_POSITION); }
ssize_t pwrite(int fd, const void *data, size_t bytes, off_t offset) {
    if (offset < 0) return errno = EINVAL, -1;
    return write_below(fd, data, bytes, offset);
}

ssize_t writev(int fd, const struct iovec *parts, int count) {
    char buffer[PATH_MAX];
    if (!below_root_fd(fd, buffer)) return SYS(writev, fd, parts, count);
    return writev_below(fd, parts, count, AT_POSITION);
}

ssize_t pwritev2(int fd, const struct iovec *parts, int count, off_t offset, int flags) {
    char buffer[PATH_MAX];
    const char *path = below_root_fd(fd, buffer);
    if (!path) return SYS(pwritev2, fd, parts, count, offset, 0, flags);
    if (flags) {
        lock();
        record(UNMODELLED, path, inode_of(fd), 0, 0, "pwritev2 flags", 14);
        unlock();
    }
    return writev_below(fd, parts, count, offset);
}

ssize_t pwritev(int fd, const struct iovec *parts, int count, off_t offset) { return pwritev2(fd, parts, count, offset, 0); }

int ftruncate(int fd, off_t bytes) {
    char buffer[PATH_MAX];
    const char *path = below_root_fd(fd, buffer);
    if (!path) return SYS(ftruncate, fd, bytes);
    lock();
    int r = failure("truncate", path) > 0 ? -1 : SYS(ftruncate, fd, bytes);
    if (!r) record(TRUNCATE, NULL, inode_of(fd), bytes, 0, NULL, 0);
    unlock();
    return r;
}

int truncate(const char *path, off_t bytes) { /* not by open and close: that would drop the process's locks on it */
    char buffer[PATH_MAX];
    const char *name = below_root_at(AT_FDCWD, path, buffer);
    if (!name) return SYS(truncate, path, bytes);
    lock();
    struct stat st;
    int r = failure("truncate", name) > 0 ? -1 : SYS(truncate, path, bytes);
    if (!r && !stat(buffer, &st)) {
        record(OPEN, name, st.st_ino, 0, 0, NULL, 0);
        record(TRUNCATE, NULL, st.st_ino, bytes, 0, NULL, 0);
    }
    unlock();
    return r;
}

int fallocate(int fd, int mode, off_t offset, off_t bytes) {
    char buffer[PATH_MAX];
    const char *path = below_root_fd(fd, buffer);
    if (!path) return SYS(fallocate, fd, mode, offset, bytes);
    lock();
    struct stat st;
    int r = fstat(fd, &st);
    if (!r) r = failure("truncate", path) > 0 ? -1 : SYS(fallocate, fd, mode, offset, bytes);
    if (!r && mode == 0 && offset + bytes > st.st_size) record(TRUNCATE, NULL, st.st_ino, offset + bytes, 0, NULL, 0);
    if (!r && mode == (FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE)) record(ZERO, NULL, st.st_ino, offset, bytes, NULL, 0);
    else if (!r && mode && mode != FALLOC_FL_KEEP_SIZE) record(UNMODELLED, path, st.st_ino, 0, 0, "fallocate mode", 14);
    unlock();
    return r;
}

int posix_fallocate(int fd, off_t offset, off_t bytes) {
    int saved = errno, r = fallocate(fd, 0, offset, bytes) ? errno : 0;
    errno = saved;
    return r;
}

/* -- syncs ------------------------------------------------------------------------------------------- */

static int sync_below(int fd, int data_only) {
    char buffer[PATH_MAX];
    const char *path = below_root_fd(fd, buffer);
    if (!path) return data_only ? SYS(fdatasync, fd) : SYS(fsync, fd);
    lock();
    int error = failure("sync", path);
    int64_t number = ((int64_t)getpid() << 32) + ++sync_number;
    record(SYNC_BEGIN, NULL, inode_of(fd), number, 0, NULL, 0);
    unlock();
    int r = error > 0 ? (errno = error, -1) : data_only ? SYS(fdatasync, fd) : SYS(fsync, fd);
    lock();
    record(SYNC_END, NULL, inode_of(fd), number, r ? errno : 0, NULL, 0);
    unlock();
    return r;
}

int fsync(int fd) { return sync_below(fd, 0); }
int fdatasync(int fd) { return sync_below(fd, 1); }

int sync_file_range(int fd, off_t offset, off_t bytes, unsigned flags) { /* promises nothing: never recorded */
    char buffer[PATH_MAX];
    const char *path = below_root_fd(fd, buffer);
    if (path && failure_locked("sync", path) > 0) return -1;
    return SYS(sync_file_range, fd, offset, bytes, flags);
}

/* -- names ------------------------------------------------------------------------------------------- */

int unlinkat(int dirfd, const char *path, int flags) {
    char buffer[PATH_MAX];
    const char *name = below_root_at(dirfd, path, buffer);
    if (!name) return SYS(unlinkat, dirfd, path, flags);
    lock();
    int r = failure("entry", name) > 0 ? -1 : SYS(unlinkat, dirfd, path, flags);
    if (!r) record(UNLINK, name, 0, 0, 0, NULL, 0);
    unlock();
    return r;
}

int unlink(const char *path) { return unlinkat(AT_FDCWD, path, 0); }
int rmdir(const char *path) { return unlinkat(AT_FDCWD, path, AT_REMOVEDIR); }

int renameat2(int olddir, const char *old, int newdir, const char *new, unsigned flags) {
    char from_buffer[PATH_MAX], to_buffer[PATH_MAX];
    const char *from = below_root_at(olddir, old, from_buffer), *to = below_root_at(newdir, new, to_buffer);
    if (!from && !to) return SYS(renameat2, olddir, old, newdir, new, flags);
    lock();
    int r = failure("entry", from ? from : to) > 0 ? -1 : SYS(renameat2, olddir, old, newdir, new, flags);
    if (!r && from && to && !(flags & ~RENAME_NOREPLACE)) record(RENAME, from, 0, 0, 0, to, strlen(to));
    else if (!r) record(UNMODELLED, from ? from : to, 0, 0, 0, "rename over the border, or exchange", 35);
    unlock();
    return r;
}

int rename(const char *old, const char *new) { return renameat2(AT_FDCWD, old, AT_FDCWD, new, 0); }
int renameat(int olddir, const char *old, int newdir, const char *new) { return renameat2(olddir, old, newdir, new, 0); }

int linkat(int olddir, const char *old, int newdir, const char *new, int flags) {
    char from_buffer[PATH_MAX], to_buffer[PATH_MAX];
    const char *from = below_root_at(olddir, old, from_buffer), *to = below_root_at(newdir, new, to_buffer);
    if (!from && !to) return SYS(linkat, olddir, old, newdir, new, flags);
    lock();
    int r = failure("entry", to ? to : from) > 0 ? -1 : SYS(linkat, olddir, old, newdir, new, flags);
    if (!r && from && to) record(LINK, from, 0, 0, 0, to, strlen(to));
    else if (!r) record(UNMODELLED, from ? from : to, 0, 0, 0, "link over the border", 20);
    unlock();
    return r;
}

int link(const char *old, const char *new) { return linkat(AT_FDCWD, old, AT_FDCWD, new, 0); }

int mkdirat(int dirfd, const char *path, mode_t mode) {
    char buffer[PATH_MAX];
    const char *name = below_root_at(dirfd, path, buffer);
    if (!name) return SYS(mkdirat, dirfd, path, mode);
    lock();
    int r = failure("entry", name) > 0 ? -1 : SYS(mkdirat, dirfd, path, mode);
    if (!r) record(MKDIR, name, 0, 0, 0, NULL, 0);
    unlock();
    return r;
}

int mkdir(const char *path, mode_t mode) { return mkdirat(AT_FDCWD, path, mode); }

/* -- reads fail, but leave no trace -------------------------------------------------------------------- */

static int read_fails(int fd) {
    char buffer[PATH_MAX];
    const char *path = rule_count ? below_root_fd(fd, buffer) : NULL;
    return path ? failure_locked("read", path) : 0;
}

ssize_t read(int fd, void *data, size_t bytes) {
    int error = read_fails(fd);
    return error > 0 ? -1 : SYS(read, fd, data, error == SHORT && bytes > 1 ? bytes / 2 : bytes);
}
ssize_t pread(int fd, void *data, size_t bytes, off_t offset) {
    int error = read_fails(fd);
    return error > 0 ? -1 : SYS(pread64, fd, data, error == SHORT && bytes > 1 ? bytes / 2 : bytes, offset);
}
ssize_t readv(int fd, const struct iovec *parts, int count) { return read_fails(fd) > 0 ? -1 : SYS(readv, fd, parts, count); }
ssize_t preadv2(int fd, const struct iovec *parts, int count, off_t offset, int flags) {
    return read_fails(fd) > 0 ? -1 : SYS(preadv2, fd, parts, count, offset, 0, flags);
}
ssize_t preadv(int fd, const struct iovec *parts, int count, off_t offset) { return preadv2(fd, parts, count, offset, 0); }

/* -- ways around the shim: noted, so that a trace that is not the whole truth is refused ---------------- */

static void unmodelled(int fd, const char *what) {
    char buffer[PATH_MAX];
    const char *path = below_root_fd(fd, buffer);
    if (!path) return;
    size_t n = strlen(path);
    if (n > 4 && !strcmp(path + n - 4, "-shm")) return; /* SQLite's wal-index: rebuilt after every crash */
    lock();
    record(UNMODELLED, path, inode_of(fd), 0, 0, what, strlen(what));
    unlock();
}

void *mmap(void *address, size_t bytes, int protection, int flags, int fd, off_t offset) {
    if (fd >= 0 && (flags & MAP_SHARED) && (protection & PROT_WRITE)) unmodelled(fd, "mmap for writing");
    return (void *)SYS(mmap, address, bytes, protection, flags, fd, offset);
}
ssize_t sendfile(int out, int in, off_t *offset, size_t bytes) {
    unmodelled(out, "sendfile");
    return SYS(sendfile, out, in, offset, bytes);
}
ssize_t copy_file_range(int in, off_t *in_at, int out, off_t *out_at, size_t bytes, unsigned flags) {
    unmodelled(out, "copy_file_range");
    return SYS(copy_file_range, in, in_at, out, out_at, bytes, flags);
}
int symlink(const char *target, const char *path) {
    char buffer[PATH_MAX];
    const char *name = below_root_at(AT_FDCWD, path, buffer);
    if (name) {
        lock();
        record(UNMODELLED, name, 0, 0, 0, "symlink", 7);
        unlock();
    }
    return SYS(symlinkat, target, AT_FDCWD, path);
}

/* On 64-bit systems the *64 functions are the same functions. */
#define ALIAS(type, name, of, ...) type name(__VA_ARGS__) __attribute__((alias(#of)))
ALIAS(int, open64, open, const char *, int, ...);
ALIAS(int, openat64, openat, int, const char *, int, ...);
ALIAS(int, creat64, creat, const char *, mode_t);
ALIAS(ssize_t, pwrite64, pwrite, int, const void *, size_t, off64_t);
ALIAS(ssize_t, pwritev64, pwritev, int, const struct iovec *, int, off64_t);
ALIAS(ssize_t, pwritev64v2, pwritev2, int, const struct iovec *, int, off64_t, int);
ALIAS(ssize_t, pread64, pread, int, void *, size_t, off64_t);
ALIAS(ssize_t, preadv64, preadv, int, const struct iovec *, int, off64_t);
ALIAS(ssize_t, preadv64v2, preadv2, int, const struct iovec *, int, off64_t, int);
ALIAS(int, ftruncate64, ftruncate, int, off64_t);
ALIAS(int, truncate64, truncate, const char *, off64_t);
ALIAS(int, fallocate64, fallocate, int, int, off64_t, off64_t);
ALIAS(int, posix_fallocate64, posix_fallocate, int, off64_t, off64_t);
ALIAS(void *, mmap64, mmap, void *, size_t, int, int, int, off64_t);
ALIAS(ssize_t, sendfile64, sendfile, int, int, off64_t *, size_t);
