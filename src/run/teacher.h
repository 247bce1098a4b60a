/* What a teacher finds likely: the K most probable words of each place of the data, in a file that `sherd eval --top-k`
 * writes and objective.name=distillation reads. Windows are those of a run with the same training.seq_len and packing:
 * each record has the hash of its tokens, so one of other data is found when it is read. */
#ifndef SH_RUN_TEACHER_H
#define SH_RUN_TEACHER_H

#include "io/data/data.h"
#include "src/config/config.h"

struct sh_run;
struct sh_feed;
struct sh_eval_result;
struct sh_teacher;

/* Open objective.teacher_path for micro-steps of `sequences`. Local.
 * Errors: SH_E_USAGE: no path is given; the file has fewer words of a place than objective.top_k. SH_E_DATA: no such
 * file, it is damaged, or of another tokenizer, other windows or a larger vocabulary, or
 * `docs`, whether documents are kept apart, is not as it was with the teacher. */
sh_rc sh_teacher_open(const struct sh_config *cfg, const struct sh_data *d, bool docs, int64_t sequences,
                      struct sh_teacher **out);
void sh_teacher_close(struct sh_teacher *t); /* NULL is fine */

/* Read what belongs to samples [first, first + n), whose tokens [n,T] are at hand. Local.
 * Errors: SH_E_DATA with the window: the file was cut short or damaged, or is of other data. */
sh_rc sh_teacher_read(struct sh_teacher *t, const struct sh_data *d, int64_t first, int64_t n, const int32_t *tokens);
const int32_t *sh_teacher_words(const struct sh_teacher *t); /* [sequences, T, top_k] of the samples that were read */
const float *sh_teacher_logp(const struct sh_teacher *t);

/* Evaluate all of a set with a run opened for SH_TO_TEACH, and write what it finds likely to `path`, which appears when
 * it is complete. Collective. Errors: those of sh_run_evaluate(), and of the file. */
sh_rc sh_teacher_write(struct sh_run *r, struct sh_feed *f, const char *path, struct sh_eval_result *out);

#endif
