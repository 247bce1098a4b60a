/* Threads of Sherd, and waits of them that end. Local. */
#ifndef SH_BASE_THREAD_H
#define SH_BASE_THREAD_H

#include "src/base/err.h"

#include <pthread.h>
#include <stddef.h>
#include <time.h>

/* Start a thread that runs fn(arg) with all signals blocked (src/job/signal.c says why).
 *   *thread  out  to be joined; NULL: the thread is detached
 *   purpose  in   what it does, for the message: "read data ahead"
 *   stack    in   bytes; 0: the system's usual size
 * Errors: SH_E_MEMORY. */
sh_rc sh_thread_start(pthread_t *thread, const char *purpose, void *(*fn)(void *arg), void *arg, size_t stack);

/* A condition whose timed waits use the monotonic clock, since the wall clock may jump; and a time for them. */
void sh_thread_cond_init(pthread_cond_t *cond);
struct timespec sh_thread_time_in(double seconds);

#endif
