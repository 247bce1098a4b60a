/* One matrix product, as the products of every device take it. */
#ifndef SH_KERNELS_MATMUL_H
#define SH_KERNELS_MATMUL_H

#include "src/base/number/dtype.h"

#include <stdbool.h>
#include <stdint.h>

/* c [m,n] = a [m,k] b [k,n] + bias [n] + addend [m,n], all row-major; sums in f32, rounded once. ld: distance between
 * stored rows in elements. a is stored [m,k], or [k,m] if trans_a; b [k,n], or [n,k] if trans_b. */
struct sh_matmul {
    int64_t m, n, k;
    enum sh_dtype in_dtype; /* of a and b: f32, bf16, or f16 on CPUs */
    const void *a;
    int64_t lda;
    bool trans_a;
    const void *b;
    int64_t ldb;
    bool trans_b;
    enum sh_dtype out_dtype; /* of c and addend: f32, or in_dtype */
    void *c;                 /* [m,n]; overlaps no operand, except that it may be exactly addend */
    int64_t ldc;
    int64_t c_rows;     /* CPUs: of the matrix of which c is a part: a large one is written past the caches; 0: m */
    const void *bias;   /* [n], of in_dtype on CPUs and of out_dtype on GPUs, added to each row; NULL: none */
    const void *addend; /* [m,n] with ldc; c itself: the product is added to c; NULL: none */
};

#endif
