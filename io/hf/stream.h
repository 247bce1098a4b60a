/* Tensors into a new folder of safetensors, block by block, by one process: each block is read as floats by whoever calls,
 * narrowed, written, and compared with what the file has. Inside io/hf; local. */
#ifndef IO_HF_STREAM_H
#define IO_HF_STREAM_H

#include "io/hf/export.h"
#include "io/safetensors/write.h"

struct sh_hf_stream {
    const char *folder;               /* a new one, which has its name when it is complete */
    const char *from;                 /* in messages */
    const struct sh_st_entry *tensor; /* [n] name, type, dims, elems */
    int64_t n;
    const struct sh_hf_export *options;
    const char *file; /* all in one file of this name; NULL: as save_pretrained() names them */
    void *arg;
    /* Elements [first, first + n) of a tensor, a whole block of SH_CKPT_BLOCK_ELEMS or the last one. By several threads at
     * once; spare: 4 bytes an element, the thread's own. */
    sh_rc (*read)(void *arg, int tensor, int64_t first, int64_t n, float *out, void *spare);
    /* Small files, after the tensors. */
    sh_rc (*beside)(void *arg, const struct sh_st_writing *w);
};

/* Nothing is left behind where it fails. Errors: those of read and beside; SH_E_USAGE: the folder exists; SH_E_DATA: I/O;
 * SH_E_NUMERIC: a value that float16 does not have. */
sh_rc sh_hf_stream_out(const struct sh_hf_stream *s);

#endif
