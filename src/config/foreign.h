/* Keys of other trainers: torchtitan's that Sherd does not have, and the words of DeepSpeed's and Hugging Face's files.
 * Inside src/config; local. */
#ifndef SH_CONFIG_FOREIGN_H
#define SH_CONFIG_FOREIGN_H

/* What to do here instead of the key or section of that name, "section.key" or "section"; NULL: it is not known. */
const char *sh_config_foreign(const char *name);

#endif
