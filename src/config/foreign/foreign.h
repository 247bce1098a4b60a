/* Keys of other trainers: those of torchtitan that Sherd does not have, and those in the files of DeepSpeed, accelerate
 * and axolotl, and of Hugging Face's Trainer (trainer.h). Inside src/config; local. */
#ifndef SH_FOREIGN_FOREIGN_H
#define SH_FOREIGN_FOREIGN_H

/* More than a key and SH_CONFIG_SHOWN. */
enum { SH_CONFIG_ADVICE = 128 };

/* What to do in Sherd instead of using the key or section of that name, "section.key" or "section": Sherd's key, with
 * the value if there is one, or a clause. NULL: it is not known.
 *   value  "": none, or not one word
 *   out    may hold what is returned */
const char *sh_config_foreign(const char *name, const char *value, char out[SH_CONFIG_ADVICE]);

#endif
