/* The tokenizer of a run's model: model.tokenizer has its name, and checkpoints keep that with the hash of its file, so
 * that the ids of a text are those that the model was trained with. Beside it they keep config.json of the folder that
 * the model is from, which an export needs. */
#ifndef SH_RUN_TOKENIZER_H
#define SH_RUN_TOKENIZER_H

#include "io/checkpoint/checkpoint.h"
#include "src/config/config.h"

struct sh_run;
struct sh_tokenizer;

enum { SH_RUN_HASH = 20 }; /* bytes of a hash as text: 16 digits, or "byte" */

/* Take what a checkpoint says of it; a name in model.tokenizer stays. `begins`: a new run begins with its parameters, and
 * may take another tokenizer. Local, the same on all ranks. */
void sh_run_tokenizer_take(struct sh_run *r, const struct sh_ckpt_meta *meta, bool begins);

/* Open that of a checkpoint's model: `given`, or NULL: model.tokenizer; where none is named, bytes. Local.
 * Errors: those of sh_tokenizer_open() and sh_ckpt_read_meta(); SH_E_USAGE: another one than the checkpoint was trained
 * with, one that has more words than the model, or none is known. */
sh_rc sh_run_tokenizer_of(const struct sh_config *cfg, const char *checkpoint, const char *given,
                          struct sh_tokenizer **out);

/* What checkpoints are to keep of a model.
 *   cfg         model.tokenizer, and model.hf_assets_path whose config.json is kept; a tokenizer of that folder that is not
 *               read here is left out, which is said
 *   hash        in: that of the checkpoint, "" where there is none; out: of the tokenizer that is named
 *   *hf_config  replaced; freed with free()
 * Local. Errors: those of sh_tokenizer_open(); SH_E_USAGE: as above. */
sh_rc sh_run_tokenizer_find(struct sh_config *cfg, char hash[SH_RUN_HASH], char **hf_config);

/* The same of a run before its first step, by rank 0 for all. Collective, agreed. */
sh_rc sh_run_tokenizer_start(struct sh_run *r);

/* Bytes of the text of each word, for bits per byte: all ranks get r->word_bytes. Nothing where no tokenizer is known, or
 * it cannot be opened, which is said. Collective, agreed. Errors: SH_E_USAGE: another tokenizer, as above. */
sh_rc sh_run_tokenizer_lengths(struct sh_run *r);

/* The folder that has the tokenizer of a checkpoint: that of `name` (as of model.tokenizer), where its tokenizer.json has
 * this hash; NULL: it is not there. Freed with free(). Local. */
char *sh_run_tokenizer_folder(const char *name, const char *hash);

/* The values of the notes that a checkpoint has, NULL where it has none; freed with free(). Local. */
void sh_run_tokenizer_kept(const struct sh_ckpt_meta *meta, char **hash, char **hf_config);

/* What checkpoints keep, as lines "name: value"; freed with free(). Local. */
char *sh_run_tokenizer_notes(const char *hash, const char *hf_config);

#endif
