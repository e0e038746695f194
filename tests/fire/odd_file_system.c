/* Preloaded into a process, this gives the files below a folder the semantics of other file systems.

   ODD_ROOT    the folder
   ODD_HOST    what gethostname says: another machine
   ODD_FLOCK   nothing: succeeds and locks nothing; an errno: fails with it
   ODD_SYNC    folders, all: fsync of them fails with EINVAL
   ODD_RENAME  refuses: no rename over a file; two_steps: the old file is removed first
   ODD_KILL    with two_steps: SIGKILL between the two steps of the n-th rename over a file
   ODD_TIMES   ignores, refuses: utimensat; a number: the clock of this machine is that much ahead
   ODD_SILLY   an open file that is removed stays as .nfsNNNN until it is closed
   ODD_STALE   an open file that was removed answers ESTALE
   ODD_DELAY   microseconds: each change takes up to that long, before or after it happens */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static const char *setting(const char *name) {
  const char *value = getenv(name);
  return value && *value ? value : NULL;
}

static int is(const char *name, const char *value) {
  const char *found = setting(name);
  return found && !strcmp(found, value);
}

static int below(const char *path) {
  const char *root = setting("ODD_ROOT");
  return root && !strncmp(path, root, strlen(root));
}

static int open_path(int descriptor, char *into) {
  char link[64];
  snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
  ssize_t length = syscall(SYS_readlinkat, AT_FDCWD, link, into, PATH_MAX - 1);
  into[length > 0 ? length : 0] = 0;
  return below(into);
}

static int at(int folder, const char *path, char *into) {
  if (path[0] == '/') {
    snprintf(into, PATH_MAX, "%s", path);
  } else {
    char start[PATH_MAX] = "";
    if (folder == AT_FDCWD) syscall(SYS_getcwd, start, PATH_MAX);
    else open_path(folder, start);
    snprintf(into, PATH_MAX, "%.2000s/%.2000s", start, path);
  }
  return below(into);
}

static int fails(int code) { errno = code; return -1; }

static void wait_a_moment(void) {
  const char *most = setting("ODD_DELAY");
  struct timespec now;
  if (!most) return;
  clock_gettime(CLOCK_MONOTONIC, &now);
  usleep((now.tv_nsec / 1000 * 2654435761u + getpid() * 40503u) % atol(most));
}

int gethostname(char *name, size_t length) {
  const char *host = setting("ODD_HOST");
  if (host) return snprintf(name, length, "%s", host), 0;
  FILE *file = fopen("/proc/sys/kernel/hostname", "r");
  if (!file || !fgets(name, length, file)) return fails(EIO);
  name[strcspn(name, "\n")] = 0;
  fclose(file);
  return 0;
}

static int is_gone(int descriptor) {
  struct stat now;
  char path[PATH_MAX];
  return setting("ODD_STALE") && open_path(descriptor, path) && !syscall(SYS_fstat, descriptor, &now) && !now.st_nlink;
}

int flock(int descriptor, int how) {
  char path[PATH_MAX];
  const char *odd = setting("ODD_FLOCK");
  if (odd && open_path(descriptor, path)) return atoi(odd) ? fails(atoi(odd)) : 0;
  if (is_gone(descriptor)) return fails(ESTALE);
  return syscall(SYS_flock, descriptor, how);
}

int fstat(int descriptor, struct stat *into) {
  return is_gone(descriptor) ? fails(ESTALE) : syscall(SYS_fstat, descriptor, into);
}
int fstat64(int descriptor, struct stat64 *into) { return fstat(descriptor, (struct stat *)into); }

static int cannot_sync(int descriptor) {
  struct stat now;
  char path[PATH_MAX];
  if (!setting("ODD_SYNC") || !open_path(descriptor, path)) return 0;
  return is("ODD_SYNC", "all") || (!syscall(SYS_fstat, descriptor, &now) && S_ISDIR(now.st_mode));
}
int fsync(int descriptor) { return cannot_sync(descriptor) ? fails(EINVAL) : syscall(SYS_fsync, descriptor); }
int fdatasync(int descriptor) { return cannot_sync(descriptor) ? fails(EINVAL) : syscall(SYS_fdatasync, descriptor); }

/* 1: the file is open, and has a silly name now */
static int is_silly(const char *path) {
  struct stat wanted, open_one;
  char silly[PATH_MAX];
  static int number;
  if (!setting("ODD_SILLY") || syscall(SYS_newfstatat, AT_FDCWD, path, &wanted, AT_SYMLINK_NOFOLLOW)) return 0;
  if (!S_ISREG(wanted.st_mode)) return 0;
  for (int descriptor = 0; descriptor < 256; descriptor++) {
    if (syscall(SYS_fstat, descriptor, &open_one) || open_one.st_ino != wanted.st_ino || open_one.st_dev != wanted.st_dev) continue;
    snprintf(silly, sizeof silly, "%.*s/.nfs%08d%04d", (int)(strrchr(path, '/') - path), path, getpid(), number++);
    return !syscall(SYS_renameat2, AT_FDCWD, path, AT_FDCWD, silly, 0);
  }
  return 0;
}

int close(int descriptor) {
  char path[PATH_MAX], *name;
  if (setting("ODD_SILLY") && open_path(descriptor, path) && (name = strrchr(path, '/')) && !strncmp(name, "/.nfs", 5)) {
    int result = syscall(SYS_close, descriptor);
    for (int other = 0; other < 256; other++) {
      char held[PATH_MAX];
      if (open_path(other, held) && !strcmp(held, path)) return result;
    }
    syscall(SYS_unlinkat, AT_FDCWD, path, 0);
    return result;
  }
  return syscall(SYS_close, descriptor);
}

int unlinkat(int folder, const char *path, int flags) {
  char whole[PATH_MAX];
  if (!at(folder, path, whole)) return syscall(SYS_unlinkat, folder, path, flags);
  wait_a_moment();
  int result = !(flags & AT_REMOVEDIR) && is_silly(whole) ? 0 : syscall(SYS_unlinkat, folder, path, flags);
  int code = errno;
  wait_a_moment();
  errno = code;
  return result;
}
int unlink(const char *path) { return unlinkat(AT_FDCWD, path, 0); }

int renameat(int from_folder, const char *from, int to_folder, const char *to) {
  struct stat there;
  char source[PATH_MAX], target[PATH_MAX];
  static int renames;
  if (!at(from_folder, from, source) || !at(to_folder, to, target))
    return syscall(SYS_renameat2, from_folder, from, to_folder, to, 0);
  wait_a_moment();
  int is_over = !syscall(SYS_newfstatat, AT_FDCWD, target, &there, AT_SYMLINK_NOFOLLOW) && S_ISREG(there.st_mode);
  if (is_over && is("ODD_RENAME", "refuses")) return fails(EEXIST);
  if (is_over && is("ODD_RENAME", "two_steps")) {
    syscall(SYS_unlinkat, AT_FDCWD, target, 0);
    renames++;
    if (setting("ODD_KILL") && atoi(setting("ODD_KILL")) == renames) syscall(SYS_kill, getpid(), SIGKILL);
  }
  int result = syscall(SYS_renameat2, AT_FDCWD, source, AT_FDCWD, target, 0), code = errno;
  wait_a_moment();
  errno = code;
  return result;
}
int rename(const char *from, const char *to) { return renameat(AT_FDCWD, from, AT_FDCWD, to); }

int utimensat(int folder, const char *path, const struct timespec times[2], int flags) {
  char whole[PATH_MAX];
  const char *odd = setting("ODD_TIMES");
  if (!odd || !at(folder, path, whole)) return syscall(SYS_utimensat, folder, path, times, flags);
  if (!strcmp(odd, "ignores")) return 0;
  if (!strcmp(odd, "refuses")) return fails(ENOSYS);
  struct timespec own[2];
  clock_gettime(CLOCK_REALTIME, &own[0]);
  own[0].tv_sec += atol(odd);
  own[1] = own[0];
  return syscall(SYS_utimensat, AT_FDCWD, whole, own, flags);
}

static int opened(int folder, const char *path, int flags, mode_t mode) {
  char whole[PATH_MAX];
  if (!(flags & O_CREAT) || !setting("ODD_DELAY") || !at(folder, path, whole)) return syscall(SYS_openat, folder, path, flags, mode);
  wait_a_moment();
  int result = syscall(SYS_openat, folder, path, flags, mode), code = errno;
  wait_a_moment();
  errno = code;
  return result;
}
#define OPENS(name)                                                                  \
  int name(const char *path, int flags, ...) {                                       \
    va_list more; va_start(more, flags);                                             \
    mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(more, mode_t) : 0;          \
    va_end(more);                                                                    \
    return opened(AT_FDCWD, path, flags, mode);                                      \
  }
OPENS(open)
OPENS(open64)
