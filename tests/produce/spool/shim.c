/* Loaded before libc: the n-th call that changes a file below a path is killed, half done, refused or shortened.
 *
 * gcc -shared -fPIC -o shim.so shim.c -ldl; the program under test calls shim_arm through ctypes. Nothing happens before
 * that, and counting begins there.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

enum { OFF, KILL, KILL_HALF_DONE, REFUSE, SHORTEN };

static char prefix[4096], last[32];
static int at, mode, error, seen;

void shim_arm(const char *path, int when, int what, int code) {
  strncpy(prefix, path, sizeof prefix - 1);
  at = when; mode = what; error = code; seen = 0; last[0] = 0;
}
int shim_seen(void) { return seen; }
const char *shim_last(void) { return last; }

static int due_path(const char *path, const char *call) {
  if (!prefix[0] || strncmp(path, prefix, strlen(prefix))) return 0;
  int hit = ++seen == at;
  if (hit || !at) strcpy(last, call);
  if (hit && mode == KILL) raise(SIGKILL);
  return hit;
}
static int due(int fd, const char *call) {
  char link[32], path[4096];
  if (!prefix[0]) return 0;
  sprintf(link, "/proc/self/fd/%d", fd);
  ssize_t n = readlink(link, path, sizeof path - 1);
  path[n > 0 ? n : 0] = 0;
  return due_path(path, call);
}
#define REAL(name) static __typeof__(&name) real; if (!real) real = (__typeof__(&name))dlsym(RTLD_NEXT, #name)
#define REFUSED(hit) if ((hit) && mode == REFUSE) { errno = error; return -1; }
#define KILLED(hit) if ((hit) && mode == KILL_HALF_DONE) raise(SIGKILL)

/* A write that is stopped in the middle: half of the bytes, of all buffers together. */
static ssize_t half(int fd, const struct iovec *v, int n, off_t where) {
  static char buffer[1 << 20];
  size_t total = 0;
  for (int i = 0; i < n; i++) {
    size_t room = sizeof buffer - total, part = v[i].iov_len < room ? v[i].iov_len : room;
    memcpy(buffer + total, v[i].iov_base, part);
    total += part;
  }
  static ssize_t (*real)(int, const void *, size_t, off_t);
  if (!real) real = (ssize_t(*)(int, const void *, size_t, off_t))dlsym(RTLD_NEXT, "pwrite64");
  ssize_t done = real(fd, buffer, total / 2, where);
  if (mode == KILL_HALF_DONE) raise(SIGKILL);
  if (mode == SHORTEN) { mode = REFUSE; at = seen + 1; } /* the next one says why */
  return done;
}
#define WRITEV(name) ssize_t name(int fd, const struct iovec *v, int n, off_t o) { REAL(name); \
  int hit = due(fd, "pwritev"); REFUSED(hit); return hit && mode != OFF ? half(fd, v, n, o) : real(fd, v, n, o); }
#define WRITEV2(name) ssize_t name(int fd, const struct iovec *v, int n, off_t o, int flags) { REAL(name); \
  int hit = due(fd, "pwritev"); REFUSED(hit); return hit && mode != OFF ? half(fd, v, n, o) : real(fd, v, n, o, flags); }
#define WRITE(name) ssize_t name(int fd, const void *b, size_t n, off_t o) { REAL(name); \
  int hit = due(fd, "pwrite"); REFUSED(hit); struct iovec v = {(void *)b, n}; \
  return hit && mode != OFF ? half(fd, &v, 1, o) : real(fd, b, n, o); }
WRITEV(pwritev)
WRITEV(pwritev64)
WRITEV2(pwritev2)
WRITEV2(pwritev64v2)
WRITE(pwrite)
WRITE(pwrite64)

#define ON_FILE(name, params, args) int name params { REAL(name); int hit = due(fd, #name); REFUSED(hit); \
  int result = real args; KILLED(hit); return result; }
ON_FILE(fsync, (int fd), (fd))
ON_FILE(fdatasync, (int fd), (fd))
ON_FILE(ftruncate, (int fd, off_t n), (fd, n))
ON_FILE(ftruncate64, (int fd, off_t n), (fd, n))

/* Says what went wrong as its result. */
#define ALLOCATE(name) int name(int fd, off_t o, off_t n) { REAL(name); int hit = due(fd, "fallocate"); \
  if (hit && mode == REFUSE) return error; int result = real(fd, o, n); KILLED(hit); return result; }
ALLOCATE(posix_fallocate)
ALLOCATE(posix_fallocate64)

#define ON_PATH(name, params, args) int name params { REAL(name); int hit = due_path(path, #name); REFUSED(hit); \
  int result = real args; KILLED(hit); return result; }
ON_PATH(truncate, (const char *path, off_t n), (path, n))
ON_PATH(truncate64, (const char *path, off_t n), (path, n))
ON_PATH(unlink, (const char *path), (path))
ON_PATH(rename, (const char *path, const char *to), (path, to))
ON_PATH(mkdir, (const char *path, mode_t m), (path, m))

#define OPEN(name) int name(const char *path, int flags, ...) { REAL(name); va_list more; va_start(more, flags); \
  mode_t m = flags & O_CREAT ? va_arg(more, mode_t) : 0; va_end(more); \
  int hit = flags & O_CREAT ? due_path(path, "create") : 0; REFUSED(hit); \
  int result = real(path, flags, m); KILLED(hit); return result; }
OPEN(open)
OPEN(open64)
