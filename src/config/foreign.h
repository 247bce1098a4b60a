/* Keys of other trainers: those of torchtitan that Sherd does not have, and those in the files of DeepSpeed and Hugging
 * Face. Inside src/config; local. */
#ifndef SH_CONFIG_FOREIGN_H
#define SH_CONFIG_FOREIGN_H

/* What to do in Sherd instead of using the key or section of that name, "section.key" or "section"; NULL: it is not
 * known. */
const char *sh_config_foreign(const char *name);

#endif
