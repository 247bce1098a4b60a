/* The keeper: a small process on each node that holds the memory of near checkpoints, so that it outlives the ranks. The
 * memory has no name (memfd): it is gone with the keeper, however that ends. Ranks reach it through an abstract socket
 * whose name has the user, the job and the dump folder; descriptors travel over it. Others' processes are turned away.
 *
 * A rank says hello and then keeps that connection for as long as it lives. If it ends without a bye, the keeper tells
 * the other ranks of its node: the lowest after SH_KEEP_TELL_MS, in which a launcher has ended them all if the rank has
 * ended for a reason of its own, and the others later. Ranks of an earlier start that are still there when a rank of the
 * next one says hello are killed first: they would go on writing, and hold memory. The hello is answered once they are
 * gone, or refused if one of them cannot end: a device or a file system hangs in it.
 *
 * If starts have numbers, a rank of an earlier one that comes late is turned away instead.
 *
 * Local, no MPI. Errors: SH_E_COMM: no keeper, or it is gone; SH_E_MEMORY: it cannot reserve so much. */
#ifndef SH_NEAR_KEEP_H
#define SH_NEAR_KEEP_H

#include "src/base/err.h"

#include <stdbool.h>
#include <stdint.h>

/* SH_KEEP_ANSWER_SECONDS: for how long any answer is waited for; memory is reserved or freed, and ranks of an earlier start
 * end, before some. */
enum { SH_KEEP_TELL_MS = 500, SH_KEEP_LEFT_SECONDS = 60, SH_KEEP_ANSWER_SECONDS = 300 };

/* A part of a generation that the keeper holds. */
struct sh_keep_part {
    int rank, world, slot;
    uint64_t layout;
    uint64_t start; /* the last one that took it */
    int64_t bytes;
    int fd;
};

/* Serve the run of `folder`, until the process is killed or sh_keep_leave() was called. `limit`: bytes of all parts
 * together; `seconds`: how long a hello waits for ranks of an earlier start, SH_KEEP_LEFT_SECONDS. Errors: SH_E_USAGE:
 * there is a keeper for this run already, which may be stopped, as one counts that says nothing for SH_KEEP_ANSWER_SECONDS;
 * SH_E_DATA: the folder; SH_E_COMM: the socket, or what sh_keep_leave() says. */
sh_rc sh_keep_serve(const char *folder, int64_t limit, double seconds);

/* Whether sh_keep_serve() could be called on this node, or whether another process is in it, and what that holds; leaves
 * nothing behind. It waits for a keeper that is ending. Errors: those of sh_keep_serve() and sh_keep_connect(); SH_E_MEMORY: no memory without a name. */
sh_rc sh_keep_try(const char *folder, bool *running, int64_t *reserved);

/* From another thread: the job goes on without this node. sh_keep_serve() kills the ranks, and returns once they are gone;
 * while one is left, callers still find a keeper. `why`: the text of its error; NULL: it returns SH_OK. */
void sh_keep_leave(const char *why);

/* Reach the keeper of the run, for at most that long. *fd is closed with close(). */
sh_rc sh_keep_connect(const char *folder, double seconds, int *fd);

/* Be rank `rank` of `start`, a number that only the ranks of one start have. *keeper: the same for all who reach the
 * same keeper. seconds: for how long it waits for an answer, at most SH_KEEP_ANSWER_SECONDS, which 0 stands for. The rank says
 * which watch its script has ($SHERD_WATCH). Errors: SH_E_COMM: no answer, a rank of an earlier start does not
 * end, a later one ($SHERD_START) is there already, or the keeper follows another watch: the script has lost its place. */
sh_rc sh_keep_hello(int fd, double seconds, int rank, int world, uint64_t start, uint64_t *keeper);
void sh_keep_bye(int fd);

/* After hello: wait for news. Returns true if a rank has died, false if the keeper is gone. */
bool sh_keep_hear(int fd, int *rank);

/* Part number `index` of all; false in *more: there are no more. part->fd is the caller's. */
sh_rc sh_keep_list(int fd, int index, struct sh_keep_part *part, bool *more);

/* Have the part of that rank, world, slot and layout with that many bytes for a start: the one that is there, or a new one
 * of zeros. part->fd is the caller's. seconds: as above. After SH_E_COMM
 * the connection is of no use. */
sh_rc sh_keep_take(int fd, double seconds, struct sh_keep_part *part);

/* Forget all parts that this start has not taken. seconds: as above. */
sh_rc sh_keep_drop(int fd, double seconds, uint64_t start);

/* Forget the part of that rank, world, slot and layout. */
sh_rc sh_keep_forget(int fd, const struct sh_keep_part *part);

/* This node computes wrong numbers, and checkpoints up to step `good` are right (0: none is known to be): the keeper tells
 * the watch, before it says that the node lives once more. seconds: as above. */
sh_rc sh_keep_accuse(int fd, double seconds, int64_t good);

/* The keeper's side, from any thread: the last `good` of sh_keep_accuse(), or -1. */
int64_t sh_keep_accused(void);

/* The keeper's side, from any thread: when the first rank of the newest start that has lost one ended without a bye, but
 * not by the keeper's hand, as sh_now_ns(); 0: none has. *start: the number of that start, SHERD_START; 0 without. */
int64_t sh_keep_died(int *start);

/* Have the keeper beat to another watch, kill its ranks, and let in none of other watches; nothing if it does already.
 * Errors: SH_E_COMM: the keeper has none. */
sh_rc sh_keep_follow(int fd, const char *address);

/* For drills: have the keeper kill the lowest rank of its node, whose number is in *rank, or stop itself and all ranks
 * there, as a node that has lost its network seems to others. Errors: SH_E_USAGE: there is no rank. */
sh_rc sh_keep_lose(int fd, bool node, int *rank);

#endif
