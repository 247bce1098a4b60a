/* The options of transformers' run_clm.py and Trainer, from the rows of trainer.inc. Local. */
#ifndef SH_FOREIGN_TRAINER_H
#define SH_FOREIGN_TRAINER_H

enum sh_trainer_answer {
    SH_TRAINER_KEY,     /* `text` is the key that the value goes to */
    SH_TRAINER_OWN,     /* `sherd run_clm` has code for it; `text` is the key, or says what to do elsewhere */
    SH_TRAINER_SET,     /* `text` is "key=value,key=value", or "": it is so anyway */
    SH_TRAINER_NOTHING, /* without effect here */
    SH_TRAINER_REFUSED  /* `text` says why, and what to do instead */
};

struct sh_trainer_row {
    const char *name; /* without dashes */
    enum sh_trainer_answer answer;
    const char *words; /* the row is for these values, "a|b"; NULL: for all that no other row is for */
    const char *text;
    const char *none; /* KEY: value without the option; NULL: Sherd's default */
};

/* All rows, as many as sh_trainer_n. */
extern const struct sh_trainer_row sh_trainer_rows[];
extern const int sh_trainer_n;

/* The row of a name and a value; NULL: the value is not known, and a row for what is true comes first. accelerate's names, with fsdp_ in front of a key of fsdp_config, are found too. NULL: no
 * such name. */
const struct sh_trainer_row *sh_trainer_find(const char *name, const char *value);

/* Read a word as HfArgumentParser reads a truth value; "", an option without a value, is true.
 * Returns 1 or 0; -1: it is neither. */
int sh_trainer_truth(const char *word);

#endif
