#include "src/base/temp.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { DEAD_SECONDS = 3600, HEX = 16 };

/* The names, for the handler of a signal: nodes are never freed, and whoever takes a path out of one owns it. */
struct node {
    _Atomic(char *) path;
    struct node *next;
};
static _Atomic(struct node *) nodes;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* of adding and dropping, not for the handler */
static pid_t owner; /* a forked process that is ended must not delete its parent's files */

/* Two passes, since a folder goes only after its files. */
void sh_temp_delete(void)
{
    if (owner != getpid())
        return;
    for (int folders = 0; folders < 2; folders++)
        for (struct node *n = atomic_load(&nodes); n; n = n->next) {
            char *path = atomic_exchange(&n->path, NULL);
            if (path && (folders ? rmdir(path) : unlink(path)) != 0 && !folders && errno == EISDIR)
                atomic_store(&n->path, path);
        }
}

static void end(int number)
{
    sh_temp_delete();
    raise(number); /* SA_RESETHAND: with the default action, when this returns */
}

/* Signals that others handle stay theirs; those that a run listens for are blocked. */
static void catch_signals(void)
{
    static const int fatal[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGPIPE, SIGUSR1, SIGUSR2, SIGXCPU, SIGXFSZ, SIGALRM};
    struct sigaction ours = {.sa_handler = end, .sa_flags = SA_RESETHAND}, now;

    sigemptyset(&ours.sa_mask);
    for (size_t i = 0; i < sizeof fatal / sizeof *fatal; i++)
        if (sigaction(fatal[i], NULL, &now) == 0 && now.sa_handler == SIG_DFL)
            sigaction(fatal[i], &ours, NULL);
}

/* A free node, or a new one; NULL: no memory, so the name is not kept, and a sweep finds the file. With the lock held. */
static struct node *free_node(void)
{
    struct node *n = atomic_load(&nodes);

    while (n && atomic_load(&n->path))
        n = n->next;
    if (n || !(n = calloc(1, sizeof *n)))
        return n;
    n->next = atomic_load(&nodes);
    atomic_store(&nodes, n);
    return n;
}

void sh_temp_add(const char *path, int fd)
{
    char *copy = strdup(path);
    struct node *n;

    if (fd >= 0)
        (void)flock(fd, LOCK_EX | LOCK_NB);
    pthread_mutex_lock(&lock);
    if (owner != getpid())
        catch_signals();
    owner = getpid();
    n = copy ? free_node() : NULL;
    if (n)
        atomic_store(&n->path, copy);
    else
        free(copy);
    pthread_mutex_unlock(&lock);
}

void sh_temp_drop(const char *path)
{
    size_t length = strlen(path);

    pthread_mutex_lock(&lock);
    for (struct node *n = atomic_load(&nodes); n; n = n->next) {
        char *own = atomic_load(&n->path);
        /* A handler may take it at this moment; then it is not freed. */
        if (own && strncmp(own, path, length) == 0 && (!own[length] || own[length] == '/') &&
            atomic_compare_exchange_strong(&n->path, &own, NULL))
            free(own);
    }
    pthread_mutex_unlock(&lock);
}

/* A folder here has only files. Nothing is followed: who may write into the folder above may put links there. */
void sh_temp_remove(const char *path)
{
    int fd = unlink(path) == 0 || errno != EISDIR ? -1 : open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    DIR *dir = fd >= 0 ? fdopendir(fd) : NULL;

    for (struct dirent *d; dir && (d = readdir(dir));)
        if (strcmp(d->d_name, ".") != 0 && strcmp(d->d_name, "..") != 0)
            (void)unlinkat(dirfd(dir), d->d_name, 0);
    if (dir) {
        closedir(dir);
        (void)rmdir(path);
    } else if (fd >= 0)
        close(fd);
}

/* Whether a name is ".BASE.<16 hex digits>.tmp". */
static bool is_temp_of(const char *name, const char *base)
{
    size_t n = strlen(base);
    if (name[0] != '.' || strncmp(name + 1, base, n) != 0 || name[1 + n] != '.')
        return false;
    const char *digits = name + 1 + n + 1;
    return strspn(digits, "0123456789abcdef") == HEX && strcmp(digits + HEX, ".tmp") == 0;
}

/* A living process has the lock, and writes now and then. The clock of a file server may differ by less than the hour.
 */
static bool is_dead(int folder, const char *name)
{
    int fd = openat(folder, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    struct stat st;
    bool dead = fd >= 0 && fstat(fd, &st) == 0 && (S_ISREG(st.st_mode) || S_ISDIR(st.st_mode)) &&
                st.st_uid == geteuid() && time(NULL) - st.st_mtime > DEAD_SECONDS && flock(fd, LOCK_EX | LOCK_NB) == 0;
    if (fd >= 0)
        close(fd);
    return dead;
}

void sh_temp_sweep(const char *path)
{
    const char *slash = strrchr(path, '/'), *base = slash ? slash + 1 : path;
    char folder[PATH_MAX], found[2 * PATH_MAX];

    if (snprintf(folder, sizeof folder, "%.*s", slash ? (int)(slash - path) + 1 : 1, slash ? path : ".") >= PATH_MAX)
        return;
    DIR *dir = opendir(folder);
    for (struct dirent *d; dir && (d = readdir(dir));)
        if (is_temp_of(d->d_name, base) && is_dead(dirfd(dir), d->d_name)) {
            snprintf(found, sizeof found, "%s/%s", folder, d->d_name);
            sh_temp_remove(found);
        }
    if (dir)
        closedir(dir);
}
