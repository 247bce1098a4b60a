/* A thread that reads one range of samples ahead of its use. Only one thread may ask; stop it before the source goes
 * away. Local. */
#ifndef IO_DATA_AHEAD_H
#define IO_DATA_AHEAD_H

#include "src/base/err.h"

#include <stdbool.h>
#include <stdint.h>

/* Read samples [first, first + n): tokens, targets and docs (may be NULL) out [n,T]. Called in the reading thread. */
typedef sh_rc (*sh_data_fill)(const void *source, int64_t first, int64_t n, int32_t *tokens, int32_t *targets,
                              int32_t *docs);

/* Count the targets that count in samples [first, first + n). Called in the reading thread. */
typedef sh_rc (*sh_data_counter)(const void *source, int64_t first, int64_t n, int64_t *unmasked);

struct sh_data_ahead;

sh_rc sh_data_ahead_start(sh_data_fill fill, sh_data_counter count, const void *source, int seq_len,
                          struct sh_data_ahead **out);

/* End the thread. false: it is in a read that does not come back within seconds; then it is left alone, and neither `a`
 * nor the source may be freed. NULL: true. */
bool sh_data_ahead_stop(struct sh_data_ahead *a);

/* Begin to read [first, first + n), and count the targets of `count` samples from `first` on (0: not wanted). Waits for
 * an earlier range that is still being read, and discards it. */
void sh_data_ahead_ask(struct sh_data_ahead *a, int64_t first, int64_t n, bool docs, int64_t count);

/* Copy the range out if it is the one asked for and was read without error; waits until it has been read. Returns false
 * otherwise: read it yourself (and get the error, if there was one, in your own thread, where its text is kept). */
bool sh_data_ahead_take(struct sh_data_ahead *a, int64_t first, int64_t n, int32_t *tokens, int32_t *targets,
                        int32_t *docs);

/* The same for the number of targets that count. */
bool sh_data_ahead_targets(struct sh_data_ahead *a, int64_t first, int64_t n, int64_t *unmasked);

#endif
