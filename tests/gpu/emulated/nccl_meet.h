/* Part of the double of NCCL: ranks of one node that meet in shared memory, not through MPI, which belongs to another
 * thread. */
#ifndef SH_TESTS_GPU_EMULATED_NCCL_MEET_H
#define SH_TESTS_GPU_EMULATED_NCCL_MEET_H

#include <nccl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>

enum {
    SH_MEET_RANKS = 16,
    SH_MEET_CHUNK = 64 << 10,
    SH_MEET_POST = 4 << 10,
    SH_MEET_LOG = 2048,
    SH_MEET_NAME = 48,
    SH_MEET_PATH = 200
};

enum sh_meet_kind { SH_MEET_ALL_GATHER, SH_MEET_REDUCE_SCATTER, SH_MEET_ALL_REDUCE };
enum { SH_MEET_KINDS = SH_MEET_ALL_REDUCE + 1 };

/* A collective as a rank requests it. */
struct sh_meet_call {
    enum sh_meet_kind kind;
    ncclDataType_t type;
    size_t count;
    int64_t stream;          /* its number within the process */
    char comm[SH_MEET_NAME]; /* the communicator's name */
};

/* What a rank has requested so far, on all of its communicators. */
struct sh_meet_log {
    _Atomic int64_t n;
    struct sh_meet_call call[SH_MEET_LOG];
};

/* What one rank sends to another, a stretch at a time. */
struct sh_meet_post {
    _Atomic int full;
    size_t left, n; /* bytes of the message from here on, and of this stretch */
    char data[SH_MEET_POST];
};

/* One message of a group, from or to `peer`. */
struct sh_meet_message {
    int peer, sends;
    char *at;
    size_t bytes;
};

struct sh_meeting {
    _Atomic int state; /* 0: as created, 1: being set up, 2: ready */
    pthread_barrier_t barrier;
    struct {
        int color, key;
    } wish[SH_MEET_RANKS]; /* for a split */
    struct sh_meet_log log[SH_MEET_RANKS];
    _Alignas(64) char data[SH_MEET_RANKS][SH_MEET_CHUNK];
    struct sh_meet_post post[SH_MEET_RANKS][SH_MEET_RANKS]; /* from, to */
};

/* The meeting with that name; returns when all `size` ranks have joined. NULL: impossible. */
struct sh_meeting *sh_meet_open(const char *path, int rank, int size);
void sh_meet_close(struct sh_meeting *m);
void sh_meet_wait(struct sh_meeting *m); /* for all ranks */

/* Record this rank's call, and stop the process if one of the ranks from `first` to before `end` has called something else
 * in its place. */
void sh_meet_compare(struct sh_meeting *world, int rank, int first, int end, const struct sh_meet_call *call);

/* Carry out the collective. */
void sh_meet_exchange(struct sh_meeting *m, int rank, int size, const struct sh_meet_call *call, const void *send,
                      void *recv);

/* Carry out a group of messages, at most one to and one from each rank. Ranks without messages stay away. A message that
 * is as long on one side only stops the process. */
void sh_meet_messages(struct sh_meeting *m, int rank, struct sh_meet_message *message, int n);

int sh_meet_type_bytes(ncclDataType_t type);

#endif
