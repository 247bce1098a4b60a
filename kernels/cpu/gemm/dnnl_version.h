/* oneDNN 2 and 3 under one interface: the differences of version 3, resolved at compile time. Both run the same
 * kernels. Version 3 made memory descriptors opaque, and lets a primitive descriptor step through the implementations
 * itself; version 2 had an iterator for that. For gemm_dnnl.c only. */
#ifndef SH_GEMM_DNNL_VERSION_H
#define SH_GEMM_DNNL_VERSION_H

#include <dnnl.h>
#include <stdbool.h>

/* dnnl_memory_desc_t is a struct in version 2 and a pointer to one in version 3; functions take sh_dnnl_desc_ref.
 * struct sh_dnnl_matmul: the implementations of one product, fastest first; pd is the current one.
 *   sh_dnnl_describe     make a descriptor of a matrix; it is never destroyed
 *   sh_dnnl_append_sum   add the product to the existing values
 *   sh_dnnl_first        the first implementation; call sh_dnnl_end() even after an error, if *m was all 0 before
 *   sh_dnnl_next         the next one; dnnl_iterator_ends or dnnl_last_impl_reached after the last */
#if DNNL_VERSION_MAJOR >= 3

typedef const_dnnl_memory_desc_t sh_dnnl_desc_ref;
#define SH_DNNL_REF(desc) (desc)

struct sh_dnnl_matmul {
    dnnl_primitive_desc_t pd;
};

static inline dnnl_status_t sh_dnnl_describe(dnnl_memory_desc_t *d, const dnnl_dims_t dims, dnnl_data_type_t type,
                                             const dnnl_dims_t strides)
{
    return dnnl_memory_desc_create_with_strides(d, 2, dims, type, strides);
}

static inline dnnl_status_t sh_dnnl_append_sum(dnnl_post_ops_t ops)
{
    return dnnl_post_ops_append_sum(ops, 1.0f, 0, dnnl_data_type_undef);
}

static inline dnnl_status_t sh_dnnl_first(struct sh_dnnl_matmul *m, dnnl_engine_t engine, sh_dnnl_desc_ref a,
                                          sh_dnnl_desc_ref b, sh_dnnl_desc_ref c, const_dnnl_primitive_attr_t attr)
{
    return dnnl_matmul_primitive_desc_create(&m->pd, engine, a, b, NULL, c, attr);
}

static inline dnnl_status_t sh_dnnl_next(struct sh_dnnl_matmul *m)
{
    return dnnl_primitive_desc_next_impl(m->pd);
}

static inline void sh_dnnl_end(struct sh_dnnl_matmul *m)
{
    dnnl_primitive_desc_destroy(m->pd);
}

#else

typedef const dnnl_memory_desc_t *sh_dnnl_desc_ref;
#define SH_DNNL_REF(desc) (&(desc))

/* Must not be copied: the iterator reads the operation again for each implementation that it tries. */
struct sh_dnnl_matmul {
    dnnl_matmul_desc_t op;
    dnnl_primitive_desc_iterator_t it;
    dnnl_primitive_desc_t pd;
};

static inline dnnl_status_t sh_dnnl_describe(dnnl_memory_desc_t *d, const dnnl_dims_t dims, dnnl_data_type_t type,
                                             const dnnl_dims_t strides)
{
    return dnnl_memory_desc_init_by_strides(d, 2, dims, type, strides);
}

static inline dnnl_status_t sh_dnnl_append_sum(dnnl_post_ops_t ops)
{
    return dnnl_post_ops_append_sum(ops, 1.0f);
}

/* Fetch the iterator's current position as a separate object. */
static inline dnnl_status_t sh_dnnl_fetch(struct sh_dnnl_matmul *m)
{
    dnnl_primitive_desc_destroy(m->pd);
    m->pd = dnnl_primitive_desc_iterator_fetch(m->it);
    return m->pd ? dnnl_success : dnnl_out_of_memory;
}

static inline dnnl_status_t sh_dnnl_first(struct sh_dnnl_matmul *m, dnnl_engine_t engine, sh_dnnl_desc_ref a,
                                          sh_dnnl_desc_ref b, sh_dnnl_desc_ref c, const_dnnl_primitive_attr_t attr)
{
    dnnl_status_t status = dnnl_matmul_desc_init(&m->op, a, b, NULL, c);
    if (status == dnnl_success)
        status = dnnl_primitive_desc_iterator_create(&m->it, &m->op, attr, engine, NULL);
    return status == dnnl_success ? sh_dnnl_fetch(m) : status;
}

static inline dnnl_status_t sh_dnnl_next(struct sh_dnnl_matmul *m)
{
    dnnl_status_t status = dnnl_primitive_desc_iterator_next(m->it);
    return status == dnnl_success ? sh_dnnl_fetch(m) : status;
}

static inline void sh_dnnl_end(struct sh_dnnl_matmul *m)
{
    dnnl_primitive_desc_destroy(m->pd);
    dnnl_primitive_desc_iterator_destroy(m->it);
}

#endif

#endif
