/* The tokenizer of a run's model. model.tokenizer names it, and checkpoints keep the name and the hash of its file, so
 * that a text always has the ids that the model was trained with. Checkpoints also keep config.json from the model's
 * source folder, because an export needs it. */
#ifndef SH_RUN_TOKENIZER_H
#define SH_RUN_TOKENIZER_H

#include "io/checkpoint/checkpoint.h"
#include "src/config/config.h"

struct sh_run;
struct sh_tokenizer;

enum { SH_RUN_HASH = 20 }; /* bytes of a hash as text: 16 digits, or "byte" */

/* Take name and hash from a checkpoint; a name that is in model.tokenizer stays. `begins`: a new run begins with the
 * checkpoint's parameters, and may use another tokenizer. Local, the same on all ranks. */
void sh_run_tokenizer_take(struct sh_run *r, const struct sh_ckpt_meta *meta, bool begins);

/* Open the tokenizer of a checkpoint's model: `given`, or if that is NULL model.tokenizer, or bytes if none is named.
 *   *template  out  name of the chat template that the model has learned, "": none is known; freed with free(). NULL:
 *                   not wanted
 * Local.
 * Errors: those of sh_tokenizer_open() and sh_ckpt_read_meta(); SH_E_USAGE: the checkpoint was trained with another
 * tokenizer, this one has more words than the model, or none is known. */
sh_rc sh_run_tokenizer_of(const struct sh_config *cfg, const char *checkpoint, const char *given,
                          struct sh_tokenizer **out, char **template);

/* Find what checkpoints keep about a model's tokenizer.
 *   cfg         model.tokenizer, and model.hf_assets_path whose config.json is kept; if the tokenizer of that folder is
 *               of a kind that cannot be read here, it is left out and a line says so
 *   hash        in: that of the checkpoint, "" if there is none; out: that of the named tokenizer
 *   *hf_config  replaced; freed with free()
 * Local. Errors: those of sh_tokenizer_open(); SH_E_USAGE: as above. */
sh_rc sh_run_tokenizer_find(struct sh_config *cfg, char hash[SH_RUN_HASH], char **hf_config);

/* The same for a run before its first step; rank 0 does it for all. Collective, agreed. */
sh_rc sh_run_tokenizer_start(struct sh_run *r);

/* Set r->word_bytes on all ranks: the bytes of each word's text, for bits per byte. If no tokenizer is known, nothing
 * is set; if it cannot be opened, a line says so. Collective, agreed. Errors: SH_E_USAGE: another tokenizer, as
 * above. */
sh_rc sh_run_tokenizer_lengths(struct sh_run *r);

/* The hash of the tokenizer.json whose ids the model knows, 0 if it has no file; document files record it. Local. */
sh_rc sh_run_tokenizer_hash(const struct sh_config *cfg, uint64_t *hash);

/* The folder with the tokenizer of a checkpoint: that of `name` (a value of model.tokenizer), if its tokenizer.json has
 * this hash; NULL: it is not there. Freed with free(). Local. */
char *sh_run_tokenizer_folder(const char *name, const char *hash);

/* The values of a checkpoint's notes, NULL for a missing one; freed with free(). Local. */
void sh_run_tokenizer_kept(const struct sh_ckpt_meta *meta, char **hash, char **hf_config);

/* The notes for a checkpoint, as lines "name: value"; freed with free(). Local. */
char *sh_run_tokenizer_notes(const char *hash, const char *hf_config, const char *chat_template);

/* Set r->chat_template from the data of a run; "": they name none, or several. Local, the same on all ranks. */
void sh_run_template_take(struct sh_run *r, const char *of_data);

#endif
