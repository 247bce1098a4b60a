/* Which nodes live. The script of a job runs a watch; each keeper sends it a byte a few times a second, and the watch
 * sends one back. A node that loses power or its network falls silent: no socket is closed, and no other part of
 * a job would notice within seconds. One program decides, since one script starts the ranks: if the network falls apart,
 * the nodes of the watch go on.
 *
 * Local, no MPI. */
#ifndef SH_NEAR_PULSE_H
#define SH_NEAR_PULSE_H

#include "src/base/err.h"

#include <stddef.h>

/* The variable by which the script tells keepers where its watch is: HOST:PORT:TOKEN. Other users do not know the token. */
#define SH_PULSE_VARIABLE "SHERD_WATCH"

/* The keeper's side: a thread that beats from here on. It ends the process with SH_OK once the watch has said that it
 * ends. It has the keeper leave once the watch has lost this node and goes on, and, with an error, if the watch has been
 * silent for a minute: its node is lost, or the link of this one is cut. It turns to another watch after sh_next_tell().
 * Errors: SH_E_USAGE: the address. */
sh_rc sh_pulse_start(const char *address);

/* Errors: SH_E_USAGE: this is no address. */
sh_rc sh_pulse_check(const char *address);

/* Whether a watch there could be reached from here, with tries for that long as a keeper makes them; the last one ends a few
 * seconds later. Errors: SH_E_COMM. */
sh_rc sh_pulse_try(const char *address, double seconds);

/* Have a thread answer, at `address`, as many calls as come: what sh_pulse_try() needs of a watch. *out: NULL on error;
 * end it with sh_pulse_answer_end(), to which NULL is nothing. Errors: SH_E_COMM: it cannot listen; SH_E_MEMORY. */
struct sh_pulse_answer;
sh_rc sh_pulse_answer_begin(char *address, size_t size, struct sh_pulse_answer **out);
void sh_pulse_answer_end(struct sh_pulse_answer *answer);

/* The watch: prints lines until SIGTERM, then tells the keepers and returns.
 *
 *     watch HOST:PORT:TOKEN   first, for SHERD_WATCH
 *     lost NODE               nothing was heard for `silence` seconds
 *     ended NODE              its keeper has ended; the node may live
 *     unfit NODE STEP         it computes wrong numbers; checkpoints up to STEP are right, 0: none is known to be
 *     here NODE               its keeper has called
 *     died NODE START         before `all`: the first rank to die in START, the newest start with a death since the last `all`,
 *                             was there; 0 if ranks have no SHERD_START
 *     all                     after SIGUSR1: all nodes that are not lost or ended have been heard since
 *
 * Errors: SH_E_COMM: it cannot listen. */
sh_rc sh_pulse_watch(double silence);

#endif
