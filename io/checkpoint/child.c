/* The child is this program started again (/proc/self/exe), not a fork: memory that MPI has registered with the network
 * stays mapped once, the cost does not grow with the memory of the process, and no other thread's lock is held in the
 * child. It is recognized by its first word, before main and before MPI (decisions/0034). */
#include "io/checkpoint/child.h"

#include "io/checkpoint/pack.h"
#include "io/checkpoint/walk.h"
#include "src/base/mem.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define FIRST_WORD "sherd: reading a checkpoint"

/* Descriptors of the child in addition to the standard ones, which lead to /dev/null. */
enum { FILE_FD = 3, PIPE_FD = 4, N_FDS = 5 };

/* For 100,000 tensors HDF5 needs a few hundred MB of address space and a few seconds. */
enum { MORE_BYTES = 1 << 30, CPU_SECONDS = 60 };

/* Messages of the child: first that it runs, and when it is done one of the other two. */
enum { HERE = 0x53484331, INDEX = 1, REFUSED = 2 };
/* A separate greeting distinguishes "the child ran and then died" (a damaged file) from "it never started" (a broken
 * installation). */
struct message {
    int64_t kind, bytes;
};
struct greeting {
    int64_t here;
};

/* ---- the child ---- */

/* Sends all bytes, or returns false; a signal is not a failure. */
static bool send_all(const void *data, size_t bytes)
{
    const char *from = data;
    while (bytes > 0) {
        ssize_t put = write(PIPE_FD, from, bytes);
        if (put < 0 && errno == EINTR)
            continue;
        if (put <= 0)
            return false;
        from += put;
        bytes -= (size_t)put;
    }
    return true;
}

/* Lowers a limit, never raises it. Both values are set, so that the child cannot raise it again. */
static void limit(int what, rlim_t most)
{
    struct rlimit r;
    if (getrlimit(what, &r) == 0 && (r.rlim_cur == RLIM_INFINITY || r.rlim_cur > most)) {
        r.rlim_cur = most;
        r.rlim_max = r.rlim_max == RLIM_INFINITY || r.rlim_max > most ? most : r.rlim_max;
        (void)setrlimit(what, &r);
    }
}

/* The sanitizers map terabytes for their own use. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED 1
#elif defined(__has_feature)
#define SANITIZED \
    (__has_feature(address_sanitizer) || __has_feature(thread_sanitizer) || __has_feature(memory_sanitizer))
#else
#define SANITIZED 0
#endif

/* The libraries are mapped already, so the limit is relative to the space in use. */
static void limit_memory(void)
{
    unsigned long long pages = 0;
    FILE *f = fopen("/proc/self/statm", "r");
    if (f && fscanf(f, "%llu", &pages) == 1 && !SANITIZED)
        limit(RLIMIT_AS, pages * (rlim_t)sysconf(_SC_PAGESIZE) + MORE_BYTES);
    if (f)
        fclose(f);
}

/* Kernels before 5.9 have no such call; on them exec leaves few descriptors open anyway. */
static void close_others(void)
{
#ifdef SYS_close_range
    if (syscall(SYS_close_range, (unsigned)N_FDS, ~0U, 0) == 0)
        return;
#endif
    for (int fd = N_FDS; fd < 65536; fd++)
        close(fd);
}

/* A damaged file may make HDF5 allocate, loop or write. The child may use some memory and CPU time, no file except its
 * own, and dies with its parent. */
static void confine(void)
{
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    close_others();
    limit(RLIMIT_CORE, 0);
    limit(RLIMIT_FSIZE, 0);
    limit(RLIMIT_CPU, CPU_SECONDS);
    limit_memory();
}

/* A file that needs the child has format 1, so the names of its states are known. */
static sh_rc walk(const char *path, struct sh_ckpt_index *index)
{
    struct stat st;
    if (fstat(FILE_FD, &st) != 0)
        return sh_fail(SH_E_DATA, "%s: %s", path, strerror(errno));
    return sh_ckpt_walk(FILE_FD, path, st.st_size, &sh_ckpt_states_1, index);
}

/* Sends an index as made by sh_ckpt_pack(), or the text of the error. The parent checks either like the bytes of a
 * file.
 */
static bool answer(const char *path)
{
    struct sh_ckpt_index index;
    sh_rc rc = walk(path, &index);
    const char *text = sh_error_text();
    struct message m = {.kind = REFUSED, .bytes = (int64_t)strlen(text)};
    const void *data = text;
    if (rc == SH_OK) {
        m = (struct message){.kind = INDEX, .bytes = sh_ckpt_packed_bytes(&index)};
        data = sh_ckpt_pack(&index);
    }
    return send_all(&m, sizeof m) && send_all(data, (size_t)m.bytes);
}

/* Runs in every process that has this file linked in, but has an effect only in the child. */
__attribute__((constructor)) static void serve(int argc, char **argv)
{
    if (argc != 2 || strcmp(argv[0], FIRST_WORD) != 0)
        return;
    confine();
    struct greeting g = {HERE};
    _exit(send_all(&g, sizeof g) && answer(argv[1]) ? 0 : 1);
}

/* ---- the parent ---- */

struct child {
    pid_t pid;
    int pipe; /* the reading end */
};

/* The environment that the dynamic linker and HDF5 need to start as they did here. Nothing else: a process with a
 * rank's environment would be taken for that rank. */
static const char *const kept[] = {
    "LD_LIBRARY_PATH", "GLIBC_TUNABLES", "MALLOC_PERTURB_", "HDF5_DISABLE_VERSION_CHECK",
    "ASAN_OPTIONS",    "UBSAN_OPTIONS",  "TSAN_OPTIONS",
};
enum { KEPT = sizeof kept / sizeof kept[0] };

/* OpenBLAS would start threads as soon as it is loaded, so their number is set to 1. */
static char **make_environment(void)
{
    char **env = sh_calloc(KEPT + 3, sizeof *env);
    int n = 0;
    env[n++] = sh_strdup("OPENBLAS_NUM_THREADS=1");
    env[n++] = sh_strdup("OMP_NUM_THREADS=1");
    for (int i = 0; i < KEPT; i++)
        if (getenv(kept[i]))
            env[n++] = sh_strfmt("%s=%s", kept[i], getenv(kept[i]));
    return env;
}

static void free_environment(char **env)
{
    for (int i = 0; env[i]; i++)
        free(env[i]);
    free(env);
}

/* The batch system's signals are for the parent, those of a crash for the child. */
static int set_signals(posix_spawnattr_t *attr)
{
    static const int crashes[] = {SIGSEGV, SIGBUS, SIGABRT, SIGFPE, SIGILL, SIGTRAP, SIGSYS, SIGXCPU};
    sigset_t all, held;
    sigfillset(&all);
    held = all;
    for (size_t i = 0; i < sizeof crashes / sizeof crashes[0]; i++)
        sigdelset(&held, crashes[i]);
    int error = posix_spawnattr_setsigdefault(attr, &all);
    error = error ? error : posix_spawnattr_setsigmask(attr, &held);
    return error ? error : posix_spawnattr_setflags(attr, POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETSIGMASK);
}

/* `file` and `end` are at N_FDS or above, so that no copy overwrites another's source. */
static int set_files(posix_spawn_file_actions_t *files, int file, int end)
{
    int error = 0;
    for (int fd = 0; fd <= 2 && !error; fd++)
        error = posix_spawn_file_actions_addopen(files, fd, "/dev/null", O_RDWR, 0);
    error = error ? error : posix_spawn_file_actions_adddup2(files, file, FILE_FD);
    return error ? error : posix_spawn_file_actions_adddup2(files, end, PIPE_FD);
}

/* Start the child. Returns an errno value. All strings are copies, since posix_spawn does not take const ones. */
static int spawn_with(int file, int end, const char *path, pid_t *pid)
{
    char *argv[] = {sh_strdup(FIRST_WORD), sh_strdup(path), NULL}, **env = make_environment();
    posix_spawn_file_actions_t files;
    posix_spawnattr_t attr;
    posix_spawn_file_actions_init(&files);
    posix_spawnattr_init(&attr);
    int error = set_files(&files, file, end);
    error = error ? error : set_signals(&attr);
    error = error ? error : posix_spawn(pid, "/proc/self/exe", &files, &attr, argv, env);
    posix_spawnattr_destroy(&attr);
    posix_spawn_file_actions_destroy(&files);
    free_environment(env);
    free(argv[0]);
    free(argv[1]);
    return error;
}

/* Start the child with the file and one end of a pipe. Returns an errno value, or 0 if c is set. */
static int start(int fd, const char *path, struct child *c)
{
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0)
        return errno;
    /* dup at N_FDS or above: see set_files(). Both close on exec; only the copies that set_files() makes stay. */
    int file = fcntl(fd, F_DUPFD_CLOEXEC, N_FDS), end = fcntl(ends[1], F_DUPFD_CLOEXEC, N_FDS);
    int error = file < 0 || end < 0 ? errno : spawn_with(file, end, path, &c->pid);
    close(ends[1]);
    if (file >= 0)
        close(file);
    if (end >= 0)
        close(end);
    c->pipe = ends[0];
    if (error)
        close(ends[0]);
    return error;
}

/* Receives all bytes, or returns false if the child has closed its end, as a dead one has. */
static bool receive(const struct child *c, void *data, int64_t bytes)
{
    char *to = data;
    while (bytes > 0) {
        ssize_t got = read(c->pipe, to, (size_t)bytes);
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            return false;
        to += got;
        bytes -= got;
    }
    return true;
}

/* Ends the child, whatever it is doing, since nothing more is wanted of it. If the kernel reaps children, its process
 * number may belong to another process by now; its status is then 0. */
static int end(const struct child *c)
{
    int status = 0;
    close(c->pipe);
    if (waitpid(c->pid, &status, WNOHANG) != 0)
        return status;
    kill(c->pid, SIGKILL);
    while (waitpid(c->pid, &status, 0) < 0 && errno == EINTR)
        continue;
    return status;
}

/* Set by receive_answer(). */
struct answer {
    bool here, whole;
    struct message m;
    unsigned char *data; /* [m.bytes + 1] */
};

static void receive_answer(const struct child *c, int64_t most, struct answer *a)
{
    struct greeting g;
    a->here = receive(c, &g, sizeof g) && g.here == HERE;
    /* The length comes from the child, and so from a file that may be damaged; no more is allocated than an index of
     * such a file can have. */
    if (!a->here || !receive(c, &a->m, sizeof a->m) || a->m.bytes < 0 || a->m.bytes > most)
        return;
    /* Plain calloc(): failing to allocate a length from a file must not end the program. */
    a->data = calloc((size_t)a->m.bytes + 1, 1);
    a->whole = a->data && receive(c, a->data, a->m.bytes);
}

/* The child's own words are lost, so the signal is all that is known. */
static sh_rc say_dead(const char *path, int status)
{
    char how[40] = "";
    if (WIFSIGNALED(status))
        snprintf(how, sizeof how, " (signal %d)", WTERMSIG(status));
    return sh_fail(SH_E_DATA,
                   "%s: HDF5 failed%s while it read the structures of the file: it is damaged; take an earlier "
                   "checkpoint",
                   path, how);
}

/* Truth table:
 *  here  whole  kind      result
 *  no    -      -         the process did not start
 *  yes   no     -         it died halfway: the file is damaged
 *  yes   yes    INDEX     unpacked, with all checks of sh_ckpt_unpack()
 *  yes   yes    REFUSED   its error */
static sh_rc judge(const struct answer *a, const char *path, int64_t bytes, int status, struct sh_ckpt_index *out)
{
    if (!a->here)
        return sh_fail(SH_E_MEMORY, "%s: the process to read it did not start: is /proc/self/exe this program?", path);
    if (!a->whole || (a->m.kind != INDEX && a->m.kind != REFUSED))
        return say_dead(path, status);
    if (a->m.kind == INDEX)
        return sh_ckpt_unpack(a->data, a->m.bytes, path, bytes, bytes, out);
    return sh_fail(SH_E_DATA, "%s", (const char *)a->data);
}

/* A file without a separate index is read by HDF5, in a process that may crash. The answer's memory is limited by the
 * length of the file. */
sh_rc sh_ckpt_child_read(int fd, const char *path, int64_t bytes, struct sh_ckpt_index *out)
{
    struct answer a = {0};
    struct child c;
    int error = start(fd, path, &c);
    if (error)
        return sh_fail(SH_E_MEMORY, "%s: cannot start a process to read it: %s", path, strerror(error));
    receive_answer(&c, sh_ckpt_packed_most(bytes), &a);
    sh_rc rc = judge(&a, path, bytes, end(&c), out);
    free(a.data);
    return rc;
}
