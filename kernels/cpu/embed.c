/* Token and position embedding. Forward: N rows of C are read from wte (anywhere in it) and written. Backward: N rows
 * of f32 are read and written, and all of dwte once more if it is overwritten, which is by far the largest part.
 * Measured with 50257 x 768 and 1024 tokens on one core, where memcpy moves 40 GB/s: forward 40 GB/s, backward 78
 * (almost a memset). Rows at random places of a table cost more with more tokens: 16 and 22 GB/s with 16384. */
#include "kernels/cpu/base/block.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/base/stage.h"

#include <omp.h>
#include <string.h>

/* Checked before the threads start: an error cannot leave a parallel loop. */
static sh_rc check_tokens(const int32_t *tokens, int64_t rows, int64_t V)
{
    for (int64_t n = 0; n < rows; n++)
        if (tokens[n] < 0 || tokens[n] >= V)
            return sh_fail(SH_E_DATA,
                           "token %d is outside the vocabulary of %lld: was the data made with another "
                           "tokenizer?",
                           tokens[n], (long long)V);
    return SH_OK;
}

/* Positions start again in each document. */
static int64_t position(const int32_t *docs, int64_t n, int64_t T)
{
    return n % T - (docs ? docs[n] : 0);
}

/* The word's row of this rank's table; negative: it is another rank's. */
static int64_t row_of(const struct sh_op_call *call, int32_t token, int64_t V)
{
    int64_t row = token - call->attr->part.first;

    return row < V ? row : -1;
}

/* x = wte row, or 0, + wpe row, in pieces of the row. */
static void add_rows(const struct sh_op_call *call, int64_t x_at, int64_t wte_at, int64_t wpe_at, int64_t C)
{
    const struct sh_operand *wte = &call->in[1], *wpe = &call->in[2], *x = &call->out[0];
    float sum[SH_CPU_PIECE];

    for (int64_t p = 0; p < sh_cpu_pieces(C); p++) {
        int64_t at = p * SH_CPU_PIECE;
        struct sh_cpu_block row = {1, sh_cpu_piece_elems(C, p)};
        if (wte_at < 0)
            memset(sum, 0, sizeof sum);
        else
            sh_cpu_block_load(row, sum, row.cols, sh_cpu_at(wte->data, wte->dtype, wte_at + at), row.cols, wte->dtype);
        sh_cpu_block_add(row, sum, row.cols, sh_cpu_at(wpe->data, wpe->dtype, wpe_at + at), row.cols, wpe->dtype);
        sh_cpu_block_store(row, sh_cpu_at(x->data, x->dtype, x_at + at), row.cols, x->dtype, sum, row.cols);
    }
}

sh_rc sh_cpu_embed(const struct sh_op_call *call)
{
    const struct sh_operand *wte = &call->in[1], *x = &call->out[0];
    const int32_t *tokens = call->in[0].data, *docs = call->in[3].data;
    int64_t rows = sh_cpu_elems(&call->in[0]), T = call->in[0].dim[1], C = wte->dim[1], V = wte->dim[0];
    size_t row_bytes = (size_t)(C * sh_dtype_bytes(wte->dtype));

    SH_TRY(check_tokens(tokens, rows, call->attr->part.all ? call->attr->part.all : V));
#pragma omp parallel for schedule(static)
    for (int64_t n = 0; n < rows; n++) {
        int64_t row = row_of(call, tokens[n], V);

        if (call->in[2].data)
            add_rows(call, n * C, row * C, position(docs, n, T) * C, C);
        else if (row >= 0)
            memcpy(sh_cpu_at(x->data, x->dtype, n * C), sh_cpu_at(wte->data, wte->dtype, row * C), row_bytes);
        else
            memset(sh_cpu_at(x->data, x->dtype, n * C), 0, row_bytes);
    }
    return SH_OK;
}

/* One memset per thread: the C library writes long runs past the caches. */
static void clear(float *y, int64_t n)
{
#pragma omp parallel
    {
        int64_t threads = omp_get_num_threads(), t = omp_get_thread_num(), begin = n * t / threads;
        memset(y + begin, 0, (size_t)(n * (t + 1) / threads - begin) * sizeof *y);
    }
}

/* Columns that one thread takes at a time. It goes through the tokens in order, so the sum over the places of a token
 * has one order; cutting by rows would need locks or a sort. */
enum { COLUMNS = 64 };

/* All tokens for some columns, in order: a token that occurs twice adds twice, to the same memory, in one thread. */
static void token_columns(const struct sh_op_call *call, int64_t c, int64_t n_columns)
{
    const struct sh_operand *dx = &call->in[0];
    const int32_t *tokens = call->in[1].data;
    int64_t rows = sh_cpu_elems(&call->in[1]), C = dx->dim[dx->ndim - 1];
    float *dwte = call->out[0].data;

    for (int64_t n = 0; n < rows; n++) {
        int64_t row = row_of(call, tokens[n], call->out[0].dim[0]);

        if (row >= 0)
            sh_cpu_block_add((struct sh_cpu_block){1, n_columns}, dwte + row * C + c, C,
                             sh_cpu_at(dx->data, dx->dtype, n * C + c), C, dx->dtype);
    }
}

static void token_gradients(const struct sh_op_call *call)
{
    int64_t C = call->out[0].dim[1];

    if (!sh_op_adds(call, 0))
        clear(call->out[0].data, sh_cpu_elems(&call->out[0]));
#pragma omp parallel for schedule(static)
    for (int64_t c = 0; c < C; c += COLUMNS)
        /* A thread owns its columns of dwte. */
        token_columns(call, c, C - c < COLUMNS ? C - c : COLUMNS);
}

/* All places for some columns, like token_columns(): with documents a position may occur anywhere. */
static void position_columns(const struct sh_op_call *call, int64_t c, int64_t n_columns)
{
    const struct sh_operand *dx = &call->in[0];
    const int32_t *docs = call->in[2].data;
    int64_t T = dx->dim[1], C = dx->dim[2], rows = dx->dim[0] * T;
    float *dwpe = call->out[1].data;

    for (int64_t n = 0; n < rows; n++)
        sh_cpu_block_add((struct sh_cpu_block){1, n_columns}, dwpe + position(docs, n, T) * C + c, C,
                         sh_cpu_at(dx->data, dx->dtype, n * C + c), C, dx->dtype);
}

/* dwpe [P,C]: rows past T are cleared and stay zero. */
static void position_gradients(const struct sh_op_call *call)
{
    const struct sh_operand *dx = &call->in[0];
    int64_t B = dx->dim[0], T = dx->dim[1], C = dx->dim[2];
    float *dwpe = call->out[1].data;

    if (!sh_op_adds(call, 1))
        clear(dwpe, sh_cpu_elems(&call->out[1]));
    if (call->in[2].data) {
#pragma omp parallel for schedule(static)
        for (int64_t c = 0; c < C; c += COLUMNS)
            position_columns(call, c, C - c < COLUMNS ? C - c : COLUMNS);
        return;
    }
#pragma omp parallel for schedule(static)
    for (int64_t t = 0; t < T; t++)
        for (int64_t b = 0; b < B; b++)
            sh_cpu_block_add((struct sh_cpu_block){1, C}, dwpe + t * C, C,
                             sh_cpu_at(dx->data, dx->dtype, (b * T + t) * C), C, dx->dtype);
}

sh_rc sh_cpu_embed_bwd(const struct sh_op_call *call)
{
    if (call->out[0].data)
        token_gradients(call);
    if (call->out[1].data)
        position_gradients(call);
    return SH_OK;
}
