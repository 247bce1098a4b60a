/* A row of a plug-in that is tried: on which shapes, with which numbers, and what was found wrong. Local. */
#ifndef SH_PLUGIN_SUBJECT_H
#define SH_PLUGIN_SUBJECT_H

#include "include/sherd/plugin.h"
#include "src/plugin/trial.h"

#include <stdbool.h>

/* A row under test, and the operation whose numbers its kernels get: itself, or the one that it is the backward of. */
struct sh_subject {
    const struct sherd_op *row, *forward, *backward; /* backward NULL: it is one */
    double number[SHERD_NUMBERS];
    bool brief;
    char wrong[256]; /* "" while nothing is */
};

/* The row's numbers are the defaults on every third shape, and others on the rest. */
void sh_subject_take_numbers(struct sh_subject *s, int size);

/* Shapes have the numbers 0, 1, ...; SH_SUBJECT_LARGE has more rows than 16 bits or the blocks of a grid count, and is tried
 * only where a check asks for it. sh_subject_sizes(): how many others there are; fewer when a file is opened. */
enum { SH_SUBJECT_LARGE = 12 };
int sh_subject_sizes(const struct sh_subject *s);
struct sh_trial_size sh_subject_size(int i, enum sh_dtype act);

/* Keeps the first message. Returns false, for the caller to return. */
__attribute__((format(printf, 2, 3))) bool sh_subject_wrong(struct sh_subject *s, const char *fmt, ...);

/* Writes "cpu, x [3,10] bf16", for messages, and returns it. */
enum { SH_SUBJECT_WHERE = 64 };
const char *sh_subject_where(const struct sh_trial *t, sherd_kernel kernel, char text[SH_SUBJECT_WHERE]);

/* Call a kernel, on the GPU if it is the row's cuda kernel and a GPU is open. late: the operands come there after the call.
 * Returns false after a failure of the kernel, which is then what is wrong; a failure of the GPU ends the process. */
bool sh_subject_run(struct sh_subject *s, struct sh_trial *t, sherd_kernel kernel);
bool sh_subject_run_late(struct sh_subject *s, struct sh_trial *t, sherd_kernel kernel, bool late);

/* Call f for each shape, type and kernel that the row has, until it returns false. */
typedef bool sh_subject_try(struct sh_subject *s, int size, enum sh_dtype act, sherd_kernel kernel);
bool sh_subject_each(struct sh_subject *s, sh_subject_try *f);

/* Element i of the output. */
static inline double sh_trial_out(const struct sh_trial *t, int64_t i)
{
    return sh_operand_get(&t->call.out[0], i);
}

#endif
