/* Preloaded into a process, this kills it with SIGKILL at the n-th call that changes files.

   FIRE_ROOT     only calls on paths below this folder count
   FIRE_COMMAND  only processes with this word among their arguments count
   FIRE_AT       the call at which the process dies; 0 never
   FIRE_WHEN     before, after, or torn: in the middle of a write
   FIRE_LOG      file that gets a line "NAME PATH" for each call */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

static const char *root, *when = "before";
static long die_at;
static int is_on, log_file = -1;
static atomic_long count;

__attribute__((constructor)) static void begin(int argc, char **argv) {
  const char *command = getenv("FIRE_COMMAND"), *at = getenv("FIRE_AT");
  root = getenv("FIRE_ROOT");
  for (int i = 1; root && command && i < argc; i++) is_on |= !strcmp(argv[i], command);
  if (!is_on) return;
  die_at = at ? atol(at) : 0;
  if (getenv("FIRE_WHEN")) when = getenv("FIRE_WHEN");
  const char *log = getenv("FIRE_LOG");
  if (log) log_file = syscall(SYS_openat, AT_FDCWD, log, O_WRONLY | O_CREAT | O_APPEND, 0644);
}

static void die(void) { syscall(SYS_kill, getpid(), SIGKILL); for (;;) pause(); }

static int path_of(int descriptor, char *into) {
  char link[64];
  snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
  ssize_t length = syscall(SYS_readlinkat, AT_FDCWD, link, into, PATH_MAX - 1);
  into[length > 0 ? length : 0] = 0;
  return length > 0;
}

/* 0: not counted; 1: go on; 2: die in the middle; 3: die afterwards */
static int step(const char *name, int folder, const char *path) {
  char whole[2 * PATH_MAX], *end = whole;
  if (!is_on) return 0;
  whole[0] = 0;
  if (!path) {
    if (!path_of(folder, whole)) return 0;
  } else if (path[0] == '/') {
    snprintf(whole, sizeof whole, "%s", path);
  } else {
    if (folder == AT_FDCWD ? syscall(SYS_getcwd, whole, PATH_MAX) <= 0 : !path_of(folder, whole)) return 0;
    end += strlen(whole);
    snprintf(end, PATH_MAX, "/%s", path);
  }
  if (strncmp(whole, root, strlen(root))) return 0;
  long now = atomic_fetch_add(&count, 1) + 1;
  if (log_file >= 0) {
    char line[3 * PATH_MAX];
    int length = snprintf(line, sizeof line, "%s %s\n", name, whole + strlen(root));
    syscall(SYS_write, log_file, line, length);
  }
  if (now != die_at) return 1;
  if (!strcmp(when, "before")) die();
  return !strcmp(when, "torn") ? 2 : 3;
}

#define NEXT(name) \
  static __typeof__(name) *real; \
  if (!real) real = (__typeof__(name) *)dlsym(RTLD_NEXT, #name)
#define ENDING(type, how, call) \
  type result = call; \
  if ((how) > 1) die(); \
  return result

ssize_t write(int file, const void *data, size_t size) {
  NEXT(write);
  int how = step("write", file, NULL);
  ENDING(ssize_t, how, real(file, data, how == 2 ? size / 2 : size));
}
ssize_t pwrite64(int file, const void *data, size_t size, off64_t place) {
  NEXT(pwrite64);
  int how = step("write", file, NULL);
  ENDING(ssize_t, how, real(file, data, how == 2 ? size / 2 : size, place));
}
ssize_t writev(int file, const struct iovec *parts, int number) {
  NEXT(writev);
  int how = step("write", file, NULL);
  ENDING(ssize_t, how, real(file, parts, how == 2 && number > 1 ? number / 2 : number));
}
ssize_t sendfile64(int out, int in, off64_t *place, size_t size) {
  ssize_t sendfile64(int, int, off64_t *, size_t);
  NEXT(sendfile64);
  int how = step("write", out, NULL);
  ENDING(ssize_t, how, real(out, in, place, how == 2 ? size / 2 : size));
}
int fsync(int file) { NEXT(fsync); int how = step("fsync", file, NULL); ENDING(int, how, real(file)); }
int ftruncate64(int file, off64_t size) {
  NEXT(ftruncate64);
  int how = step("truncate", file, NULL);
  ENDING(int, how, real(file, size));
}
int rename(const char *from, const char *to) {
  NEXT(rename);
  int how = step("rename", AT_FDCWD, from);
  ENDING(int, how, real(from, to));
}
int renameat(int a, const char *from, int b, const char *to) {
  NEXT(renameat);
  int how = step("rename", a, from);
  ENDING(int, how, real(a, from, b, to));
}
int unlink(const char *path) { NEXT(unlink); int how = step("unlink", AT_FDCWD, path); ENDING(int, how, real(path)); }
int unlinkat(int folder, const char *path, int flags) {
  NEXT(unlinkat);
  int how = step("unlink", folder, path);
  ENDING(int, how, real(folder, path, flags));
}
int rmdir(const char *path) { NEXT(rmdir); int how = step("rmdir", AT_FDCWD, path); ENDING(int, how, real(path)); }
int mkdir(const char *path, mode_t mode) { NEXT(mkdir); int how = step("mkdir", AT_FDCWD, path); ENDING(int, how, real(path, mode)); }
int link(const char *from, const char *to) { NEXT(link); int how = step("link", AT_FDCWD, to); ENDING(int, how, real(from, to)); }

#define MODE(flags) \
  mode_t mode = 0; \
  if ((flags) & (O_CREAT | __O_TMPFILE)) { va_list rest; va_start(rest, flags); mode = va_arg(rest, mode_t); va_end(rest); }
#define CHANGES(flags) ((flags) & (O_CREAT | O_TRUNC))
int open(const char *path, int flags, ...) {
  NEXT(open); MODE(flags);
  int how = CHANGES(flags) ? step("create", AT_FDCWD, path) : 0;
  ENDING(int, how, real(path, flags, mode));
}
int open64(const char *path, int flags, ...) {
  NEXT(open64); MODE(flags);
  int how = CHANGES(flags) ? step("create", AT_FDCWD, path) : 0;
  ENDING(int, how, real(path, flags, mode));
}
int openat(int folder, const char *path, int flags, ...) {
  NEXT(openat); MODE(flags);
  int how = CHANGES(flags) ? step("create", folder, path) : 0;
  ENDING(int, how, real(folder, path, flags, mode));
}
int openat64(int folder, const char *path, int flags, ...) {
  NEXT(openat64); MODE(flags);
  int how = CHANGES(flags) ? step("create", folder, path) : 0;
  ENDING(int, how, real(folder, path, flags, mode));
}
