/* A time limit for calls into libraries that may never come back, as collectives do when another rank has left them with
 * an error of its own. Local; one at a time in a process.
 *
 *   sh_deadline_begin(300, "checkpoint: writing");
 *   ... the call ...
 *   sh_deadline_end();
 *
 * When the time is over first, the whole job is stopped (sh_stop) with SH_E_COMM and one line that says what was being
 * done. Nothing can be tidied up then: files that were being written stay under their temporary names. */
#ifndef SH_BASE_DEADLINE_H
#define SH_BASE_DEADLINE_H

/* `doing` must stay valid until the end. seconds <= 0: no limit. */
void sh_deadline_begin(double seconds, const char *doing);
void sh_deadline_end(void);

#endif
