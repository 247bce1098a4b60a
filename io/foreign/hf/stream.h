/* Writes tensors into a new folder of safetensors, block by block, in one process: each block is read as floats by the
 * caller's function, narrowed, written, and compared with what the file has. Inside io/foreign/hf; local. */
#ifndef IO_HF_STREAM_H
#define IO_HF_STREAM_H

#include "io/foreign/hf/export.h"
#include "io/foreign/safetensors/write.h"

struct sh_hf_stream {
    const char *folder;               /* a new folder, which gets its name when it is complete */
    const char *from;                 /* the source, for messages */
    const struct sh_st_entry *tensor; /* [n] name, type, dims, elems */
    int64_t n;
    const struct sh_hf_export *options;
    const char *file; /* put everything in one file of this name; NULL: name files like save_pretrained() */
    void *arg;
    /* Read elements [first, first + n) of a tensor, a whole block of SH_CKPT_BLOCK_ELEMS or the last one. Called by
     * several threads at once; spare: 4 bytes per element, the thread's own. */
    sh_rc (*read)(void *arg, int tensor, int64_t first, int64_t n, float *out, void *spare);
    /* Write small files, after the tensors. */
    sh_rc (*beside)(void *arg, const struct sh_st_writing *w);
};

/* Nothing is left behind on failure. Errors: those of read and beside; SH_E_USAGE: the folder exists; SH_E_DATA: I/O;
 * SH_E_NUMERIC: a value outside float16's range. */
sh_rc sh_hf_stream_out(const struct sh_hf_stream *s);

#endif
