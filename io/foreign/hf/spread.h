/* The tensors of a folder for those of a model: mostly the same ones, but a folder may have another name, or a matrix
 * for each expert of a block. The rows of the family (family.h) say which. Inside io/foreign/hf; local. */
#ifndef IO_FOREIGN_HF_SPREAD_H
#define IO_FOREIGN_HF_SPREAD_H

#include "io/checkpoint/checkpoint.h"
#include "io/foreign/hf/config/family.h"

/* Tensor i of the set is parts [first[i], first[i + 1]) of the folder, all of one size, end to end. */
struct sh_hf_spread {
    struct sh_ckpt_tensor *part; /* [n] */
    int *first;                  /* [tensors of the set + 1] */
    int n;
};

/* What a folder has. NULL: a folder that is written, with the form that all versions of transformers read. */
struct sh_hf_look {
    const char *folder;
    bool (*has)(const void *arg, const char *name);
    const void *arg;
};

/* On success free with sh_hf_spread_free(). Errors: SH_E_DATA: the folder has the same experts in two forms. */
sh_rc sh_hf_spread_make(const struct sh_hf_family *f, const struct sh_ckpt_set *set, const struct sh_hf_look *look,
                        struct sh_hf_spread *out);
void sh_hf_spread_free(struct sh_hf_spread *s);

/* The part that holds element `at` of tensor i; *into: the number of that element in the part. */
int sh_hf_spread_part(const struct sh_hf_spread *s, int tensor, int64_t at, int64_t *into);

#endif
