#include "io/move/pool.h"

#include "src/base/thread.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/mman.h>

/* Stacks are small, since a job's memory limit counts them whole; a file system is not faster with more than 64
 * threads. */
enum { MAX_THREADS = 64, TEXT_BYTES = 2048, STACK_BYTES = 512 << 10 };

/* Jobs [0, jobs) are taken one by one from a counter, so a slow job holds up only one thread. The caller's thread works
 * too: with 4 threads, 3 are created. */
struct pool {
    int64_t jobs, buffer_bytes;
    sh_rc (*work)(void *arg, int64_t job, char *buffer);
    void *arg;
    atomic_llong next;
    pthread_mutex_t lock; /* protects what follows */
    int64_t failed;       /* the lowest job that failed */
    sh_rc rc;
    char text[TEXT_BYTES];
};

/* Error texts are kept per thread, so the text is copied along with the code. */
static void fail(struct pool *c, int64_t job, sh_rc rc)
{
    pthread_mutex_lock(&c->lock);
    if (c->rc == SH_OK || job < c->failed) {
        c->failed = job;
        c->rc = rc;
        snprintf(c->text, sizeof c->text, "%s", sh_error_text());
    }
    pthread_mutex_unlock(&c->lock);
    /* No thread takes another job; jobs in progress are finished. */
    atomic_store(&c->next, c->jobs);
}

/* Runs jobs until none is left or one has failed. */
static void work_off(struct pool *c, char *buffer)
{
    for (int64_t job; (job = atomic_fetch_add(&c->next, 1)) < c->jobs;) {
        sh_rc rc = c->work(c->arg, job, buffer);

        if (rc != SH_OK) {
            fail(c, job, rc);
            return;
        }
    }
}

/* The body of each thread. Its buffer is mapped, not taken from the heap: it is page-aligned, as direct I/O requires,
 * and goes back to the system at once. */
static void *help(void *arg)
{
    struct pool *c = arg;
    void *buffer = NULL;

    if (c->buffer_bytes)
        buffer = mmap(NULL, (size_t)c->buffer_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (buffer == MAP_FAILED) {
        fail(c, 0, sh_fail(SH_E_MEMORY, "cannot map %lld bytes for file transfers", (long long)c->buffer_bytes));
        return NULL;
    }
    work_off(c, buffer);
    if (buffer)
        munmap(buffer, (size_t)c->buffer_bytes);
    return NULL;
}

/* Returns when all jobs are done. If several fail, the lowest job counts, so that the message does not depend on
 * which thread was first. If a thread cannot be created, the existing ones do all the work. */
sh_rc sh_move_pool_run(int64_t jobs, int threads, int64_t buffer_bytes,
                       sh_rc (*work)(void *arg, int64_t job, char *buffer), void *arg)
{
    struct pool c = {
        .jobs = jobs, .buffer_bytes = buffer_bytes, .work = work, .arg = arg, .lock = PTHREAD_MUTEX_INITIALIZER};
    pthread_t helper[MAX_THREADS];
    int n = 0;

    if (threads > MAX_THREADS)
        threads = MAX_THREADS;
    for (; n < threads - 1 && n < jobs - 1; n++)
        if (sh_thread_start(&helper[n], "transfer files", help, &c, STACK_BYTES) != SH_OK) {
            sh_error_clear(); /* fewer do the work as well */
            break;
        }
    help(&c);
    for (int i = 0; i < n; i++)
        pthread_join(helper[i], NULL);
    return c.rc == SH_OK ? SH_OK : sh_fail(c.rc, "%s", c.text);
}
