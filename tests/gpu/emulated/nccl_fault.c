#include "tests/gpu/emulated/nccl_fault.h"

#include "tests/gpu/emulated/emulated.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { SLOW_SECONDS = 2 };

static struct {
    char call[40], rank[12], what[12];
    int count;
} wanted;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static void read_wish(void)
{
    const char *text = getenv("SHERD_EMULATED_NCCL_FAIL");

    if (text && sscanf(text, "%39s %11s %d %11s", wanted.call, wanted.rank, &wanted.count, wanted.what) != 4) {
        fprintf(stderr, "emulated NCCL: SHERD_EMULATED_NCCL_FAIL is \"CALL RANK COUNT WHAT\"\n");
        abort();
    }
}

/* Before there is a communicator, only the launcher knows it. */
static const char *this_rank(void)
{
    const char *rank = getenv("OMPI_COMM_WORLD_RANK");

    return rank ? rank : getenv("PMI_RANK") ? getenv("PMI_RANK") : "0";
}

static int is_due(const char *call)
{
    int due;

    pthread_once(&once, read_wish);
    if (strcmp(call, wanted.call) != 0 || (strcmp(wanted.rank, "*") != 0 && strcmp(wanted.rank, this_rank()) != 0))
        return 0;
    pthread_mutex_lock(&lock);
    due = --wanted.count == 0;
    pthread_mutex_unlock(&lock);
    return due;
}

void sh_nccl_delay(void)
{
    long most = sh_emulated_number("SHERD_EMULATED_NCCL_DELAY");

    if (most > 0)
        usleep(sh_emulated_dice((unsigned)most + 1));
}

enum sh_nccl_fault sh_nccl_fault_of(const char *call)
{
    sh_nccl_delay();
    if (!is_due(call))
        return SH_NCCL_WELL;
    while (strcmp(wanted.what, "hang") == 0)
        pause();
    if (strcmp(wanted.what, "slow") == 0) {
        sleep(SLOW_SECONDS);
        return SH_NCCL_WELL;
    }
    return strcmp(wanted.what, "async") == 0 ? SH_NCCL_ASYNC : SH_NCCL_ERROR;
}
