/* Inside src/text/command: an evaluation that also writes what the head makes of each text of the set. */
#ifndef SH_COMMAND_SCORES_H
#define SH_COMMAND_SCORES_H

#include "src/base/err.h"

#include <stdint.h>

struct sh_eval_result;
struct sh_feed;
struct sh_run;

/* As sh_run_evaluate(), by a model with labels, which was opened for SH_TO_LABEL, or whose head gives texts a value. Rank 0
 * writes a line of JSON for each document that was read, {"document": its number in the set, "logits": [x, ...]} in the order
 * of labels, or "score": x. Collective. Errors: SH_E_USAGE: the model has no such head; SH_E_DATA of the file. */
sh_rc sh_scores_write(struct sh_run *r, struct sh_feed *f, int64_t sequences, const char *path,
                      struct sh_eval_result *out);

#endif
