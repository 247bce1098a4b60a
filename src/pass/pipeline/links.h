/* The messages between stages, as each stage's program starts them and waits for them. Local, pure; plain data, which
 * ranks may send to each other. */
#ifndef SH_PASS_PIPELINE_LINKS_H
#define SH_PASS_PIPELINE_LINKS_H

#include "src/program/program.h"

/* Add the streams of messages to a program; and the one of a border of stages (sh_program_border()), with messages to the
 * next stage or back. Borders with even numbers and those with odd ones take turns, so that a rank's two borders never
 * share a stream; with an odd number of stages in a ring, the last border has streams of its own. */
void sh_links_add_streams(struct sh_program *p, int stages, bool ring);
int sh_links_stream(const struct sh_program *p, int stages, int border, bool back);

struct sh_link {
    int32_t kind;  /* SH_OP_SEND, SH_OP_RECEIVE, SH_OP_WAIT */
    int32_t peer;  /* places from this stage to the other */
    int32_t micro; /* micro-step */
    int32_t of;    /* WAIT: the row of what it waits for */
    int32_t stream, section;
    int32_t backward;
    int32_t border; /* of chunks */
    int64_t bytes;
};

/* One stage's, in the order of its program, all sections. *links is the caller's to free. Returns their number. */
int sh_links_of(const struct sh_program *p, struct sh_link **links);

/* Check those of all stages: that each RECEIVE has its SEND, and that they end if a message ends no sooner than both
 * sides have started it.
 *   links  [stages] lists of n[stages]
 * Errors: SH_E_BUG, which names stage, micro-step and operation. */
sh_rc sh_links_check(const struct sh_link *const *links, const int *n, int stages);

#endif
