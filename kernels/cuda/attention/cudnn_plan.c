#include "kernels/cuda/attention/cudnn_plan.h"

#include "kernels/cuda/attention/cudnn_graph.h"
#include "kernels/cuda/attention/cudnn_promise.h"
#include "src/base/library.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* clang-format off */
#define CALLS(X)                                                                          \
    X(GetVersion) X(GetErrorString) X(GetLastErrorString) X(Create) X(SetStream)          \
    X(BackendCreateDescriptor) X(BackendDestroyDescriptor) X(BackendSetAttribute)         \
    X(BackendGetAttribute) X(BackendFinalize) X(BackendExecute)
/* clang-format on */
#define MEMBER(name) __typeof__(&cudnn##name) name;
#define SYMBOL(name) {"cudnn" #name, &dnn.name},
static struct {
    CALLS(MEMBER)
} dnn;
static bool loaded;
/* One process, one device: the handle is kept until the process ends. */
static cudnnHandle_t handle;

typedef cudnnBackendDescriptor_t desc;

/* Descriptors refer to one another, so those of a plan live as long as the plan. */
enum { MOST_DESCRIPTORS = 200, CONFIGS = 8, KNOBS = 24 };
/* A plan, and all descriptors it is made of; they are destroyed together. */
struct sh_cudnn_plan {
    struct sh_cudnn_shape shape;
    desc plan, config;
    int64_t bytes;
    char name[256];
    desc made[MOST_DESCRIPTORS], tensor[T_COUNT], ops[64];
    int n_made, n_ops;
};

/* Every failure of cuDNN puts cuDNN's own message into the error; callers may clear it and continue with other
 * kernels. */
static sh_rc check(cudnnStatus_t status, const char *what)
{
    char words[512] = "";
    if (status == CUDNN_STATUS_SUCCESS)
        return SH_OK;
    dnn.GetLastErrorString(words, sizeof words);
    return sh_fail(SH_E_BUG, "cuDNN cannot make %s: %s; %s", what, dnn.GetErrorString(status), words);
}

/* Loaded at run time, so that a sherd built with cuDNN's headers starts without the library. */
sh_rc sh_cudnn_load(void)
{
    static const char *const files[] = {"libcudnn.so.9", NULL};
    static const struct sh_library_symbol symbols[] = {CALLS(SYMBOL){NULL, NULL}};
    if (loaded)
        return SH_OK;
    SH_TRY(sh_library_load(files, symbols));
    SH_TRY(sh_cudnn_check_version(dnn.GetVersion()));
    loaded = true;
    return SH_OK;
}

size_t sh_cudnn_version(void)
{
    return dnn.GetVersion();
}

sh_rc sh_cudnn_open(void)
{
    SH_TRY(sh_cudnn_load());
    return handle ? SH_OK : check(dnn.Create(&handle), "a start on this GPU");
}

/* One attribute of a descriptor. */
struct attribute {
    cudnnBackendAttributeName_t name;
    cudnnBackendAttributeType_t type;
    int64_t count;
    const void *value;
};
#define ATTRIBUTE(name_, type_, count_, value_) \
    ((struct attribute){CUDNN_ATTR_##name_, CUDNN_TYPE_##type_, (count_), (value_)})
#define ONE_DESC(name_, desc_) ATTRIBUTE(name_, BACKEND_DESCRIPTOR, 1, &(desc_))

/* A finished descriptor with these attributes; attributes without a value are left out. */
static sh_rc make(struct sh_cudnn_plan *p, cudnnBackendDescriptorType_t type, const char *what, int n,
                  const struct attribute *a, desc *out)
{
    SH_REQUIRE(p->n_made < MOST_DESCRIPTORS);
    SH_TRY(check(dnn.BackendCreateDescriptor(type, out), what));
    p->made[p->n_made++] = *out;
    for (int i = 0; i < n; i++)
        if (a[i].value)
            SH_TRY(check(dnn.BackendSetAttribute(*out, a[i].name, a[i].type, a[i].count, a[i].value), what));
    return check(dnn.BackendFinalize(*out), what);
}
#define MAKE(p, type, what, out, ...)                                                 \
    make(p, CUDNN_BACKEND_##type##_DESCRIPTOR, what,                                  \
         (int)(sizeof((struct attribute[]){__VA_ARGS__}) / sizeof(struct attribute)), \
         (struct attribute[]){__VA_ARGS__}, out)

/* In the reverse order of their creation, because later ones refer to earlier ones. */
void sh_cudnn_plan_destroy(struct sh_cudnn_plan *p)
{
    while (p && p->n_made > 0)
        dnn.BackendDestroyDescriptor(p->made[--p->n_made]);
    free(p);
}

/* T_LAST_NUMBER is the last tensor with an address; those after it exist only inside the kernel ("virtual"). */
static sh_rc add_tensor(struct sh_cudnn_plan *p, const struct sh_cudnn_tensor_row *row)
{
    int64_t dim[4], stride[4], uid = row->tensor, align = 16;
    bool number = row->form == F_NUMBER, nowhere = row->tensor > T_LAST_NUMBER;
    sh_cudnn_form(row->form, &p->shape, dim, stride);
    return MAKE(p, TENSOR, "a tensor", &p->tensor[row->tensor], ATTRIBUTE(TENSOR_DATA_TYPE, DATA_TYPE, 1, &row->type),
                ATTRIBUTE(TENSOR_DIMENSIONS, INT64, 4, dim), ATTRIBUTE(TENSOR_STRIDES, INT64, 4, stride),
                ATTRIBUTE(TENSOR_UNIQUE_ID, INT64, 1, &uid), ATTRIBUTE(TENSOR_BYTE_ALIGNMENT, INT64, 1, &align),
                ATTRIBUTE(TENSOR_IS_VIRTUAL, BOOLEAN, 1, &nowhere), ATTRIBUTE(TENSOR_IS_BY_VALUE, BOOLEAN, 1, &number));
}

/* cuDNN describes an operation twice: how it computes (types), and on which tensors. */
static sh_rc add_matmul(struct sh_cudnn_plan *p, const struct sh_cudnn_node *n, desc *op)
{
    cudnnDataType_t f32 = CUDNN_DATA_FLOAT;
    desc how;
    SH_TRY(MAKE(p, MATMUL, "a product", &how, ATTRIBUTE(MATMUL_COMP_TYPE, DATA_TYPE, 1, &f32)));
    return MAKE(p, OPERATION_MATMUL, "a product", op, ONE_DESC(OPERATION_MATMUL_ADESC, p->tensor[n->x]),
                ONE_DESC(OPERATION_MATMUL_BDESC, p->tensor[n->b]), ONE_DESC(OPERATION_MATMUL_CDESC, p->tensor[n->y]),
                ONE_DESC(OPERATION_MATMUL_DESC, how));
}

static sh_rc add_pointwise(struct sh_cudnn_plan *p, const struct sh_cudnn_node *n, desc *op)
{
    cudnnPointwiseMode_t mode = (cudnnPointwiseMode_t)n->mode;
    cudnnDataType_t type = mode == CUDNN_POINTWISE_CMP_GE ? CUDNN_DATA_BOOLEAN : CUDNN_DATA_FLOAT;
    int64_t axis = n->y == T_ROW ? 2 : 3;
    desc how;
    SH_TRY(MAKE(p, POINTWISE, "an operation", &how, ATTRIBUTE(POINTWISE_MODE, POINTWISE_MODE, 1, &mode),
                ATTRIBUTE(POINTWISE_MATH_PREC, DATA_TYPE, 1, &type),
                ATTRIBUTE(POINTWISE_AXIS, INT64, 1, mode == CUDNN_POINTWISE_GEN_INDEX ? &axis : NULL)));
    return MAKE(p, OPERATION_POINTWISE, "an operation", op, ONE_DESC(OPERATION_POINTWISE_PW_DESCRIPTOR, how),
                ONE_DESC(OPERATION_POINTWISE_XDESC, p->tensor[n->x]),
                ATTRIBUTE(OPERATION_POINTWISE_BDESC, BACKEND_DESCRIPTOR, 1, n->b ? &p->tensor[n->b] : NULL),
                ATTRIBUTE(OPERATION_POINTWISE_TDESC, BACKEND_DESCRIPTOR, 1, n->t ? &p->tensor[n->t] : NULL),
                ONE_DESC(OPERATION_POINTWISE_YDESC, p->tensor[n->y]));
}

/* Sums and maxima along the dimension in which y has only one element. */
static sh_rc add_reduce(struct sh_cudnn_plan *p, const struct sh_cudnn_node *n, desc *op)
{
    cudnnReduceTensorOp_t mode = (cudnnReduceTensorOp_t)n->mode;
    cudnnDataType_t f32 = CUDNN_DATA_FLOAT;
    desc how;
    SH_TRY(MAKE(p, REDUCTION, "a sum", &how, ATTRIBUTE(REDUCTION_OPERATOR, REDUCTION_OPERATOR_TYPE, 1, &mode),
                ATTRIBUTE(REDUCTION_COMP_TYPE, DATA_TYPE, 1, &f32)));
    return MAKE(p, OPERATION_REDUCTION, "a sum", op, ONE_DESC(OPERATION_REDUCTION_XDESC, p->tensor[n->x]),
                ONE_DESC(OPERATION_REDUCTION_YDESC, p->tensor[n->y]), ONE_DESC(OPERATION_REDUCTION_DESC, how));
}

/* A transposition of the view: this moves no data. */
static sh_rc add_reshape(struct sh_cudnn_plan *p, const struct sh_cudnn_node *n, desc *op)
{
    return MAKE(p, OPERATION_RESHAPE, "a transposition", op, ONE_DESC(OPERATION_RESHAPE_XDESC, p->tensor[n->x]),
                ONE_DESC(OPERATION_RESHAPE_YDESC, p->tensor[n->y]));
}

/* Build the graph in cuDNN's descriptors from the tables of cudnn_graph.c. Nodes that do not apply to the shape are
 * left out. */
static sh_rc build_graph(struct sh_cudnn_plan *p, desc *graph)
{
    static sh_rc (*const add[])(struct sh_cudnn_plan *, const struct sh_cudnn_node *, desc *) = {
        [N_MATMUL] = add_matmul, [N_POINTWISE] = add_pointwise, [N_REDUCE] = add_reduce, [N_RESHAPE] = add_reshape};
    const struct sh_cudnn_graph *g = p->shape.backward ? &sh_cudnn_backward : &sh_cudnn_forward;

    for (int i = 0; i < g->n_tensors; i++)
        SH_TRY(add_tensor(p, &g->tensors[i]));
    for (int i = 0; i < g->n_nodes; i++)
        if (sh_cudnn_takes_part(&g->nodes[i], &p->shape))
            SH_TRY(add[g->nodes[i].kind](p, &g->nodes[i], &p->ops[p->n_ops++]));
    return MAKE(p, OPERATIONGRAPH, "the graph of attention", graph,
                ATTRIBUTE(OPERATIONGRAPH_OPS, BACKEND_DESCRIPTOR, p->n_ops, p->ops),
                ATTRIBUTE(OPERATIONGRAPH_HANDLE, HANDLE, 1, handle ? &handle : NULL));
}

/* A descriptor for cuDNN to fill in. */
static sh_rc add_empty(struct sh_cudnn_plan *p, cudnnBackendDescriptorType_t type, const char *what, desc *out)
{
    SH_REQUIRE(p->n_made < MOST_DESCRIPTORS);
    SH_TRY(check(dnn.BackendCreateDescriptor(type, out), what));
    p->made[p->n_made++] = *out;
    return SH_OK;
}

/* *out stays NULL for this process's GPU. */
static sh_rc describe(struct sh_cudnn_plan *p, struct sh_cudnn_gpu gpu, desc *out)
{
    *out = NULL;
    if (!gpu.json)
        return SH_OK;
    return MAKE(p, DEVICEPROP, "a GPU from its description", out,
                ATTRIBUTE(DEVICEPROP_JSON_REPRESENTATION, CHAR, (int64_t)strlen(gpu.json), gpu.json));
}

/* The configurations with which cuDNN would run the graph, best first. */
static sh_rc ask(struct sh_cudnn_plan *p, desc graph, desc gpu, desc config[CONFIGS], int64_t *n)
{
    cudnnBackendHeurMode_t mode = CUDNN_HEUR_MODE_A;
    desc heuristics;
    SH_TRY(MAKE(p, ENGINEHEUR, "a choice of kernels", &heuristics, ONE_DESC(ENGINEHEUR_OPERATION_GRAPH, graph),
                ATTRIBUTE(ENGINEHEUR_MODE, HEUR_MODE, 1, &mode),
                ATTRIBUTE(ENGINEHEUR_DEVICEPROP, BACKEND_DESCRIPTOR, 1, gpu ? &gpu : NULL)));
    for (int i = 0; i < CONFIGS; i++)
        SH_TRY(add_empty(p, CUDNN_BACKEND_ENGINECFG_DESCRIPTOR, "a choice", &config[i]));
    return check(dnn.BackendGetAttribute(heuristics, CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_TYPE_BACKEND_DESCRIPTOR,
                                         CONFIGS, n, config),
                 "a choice of kernels");
}

/* The one configuration that is asked for by its numbers. */
static sh_rc demand(struct sh_cudnn_plan *p, desc graph, desc gpu, const struct sh_cudnn_engine *e, desc *config)
{
    desc engine, knob[SH_CUDNN_KNOBS];
    SH_TRY(MAKE(p, ENGINE, "a kernel", &engine, ONE_DESC(ENGINE_OPERATION_GRAPH, graph),
                ATTRIBUTE(ENGINE_GLOBAL_INDEX, INT64, 1, &e->index),
                ATTRIBUTE(ENGINE_DEVICEPROP, BACKEND_DESCRIPTOR, 1, gpu ? &gpu : NULL)));
    for (int i = 0; i < e->n; i++) {
        cudnnBackendKnobType_t type = (cudnnBackendKnobType_t)e->knob[i].type;
        SH_TRY(MAKE(p, KNOB_CHOICE, "a knob", &knob[i], ATTRIBUTE(KNOB_CHOICE_KNOB_TYPE, KNOB_TYPE, 1, &type),
                    ATTRIBUTE(KNOB_CHOICE_KNOB_VALUE, INT64, 1, &e->knob[i].value)));
    }
    return MAKE(p, ENGINECFG, "a kernel with knobs", config, ONE_DESC(ENGINECFG_ENGINE, engine),
                ATTRIBUTE(ENGINECFG_KNOB_CHOICES, BACKEND_DESCRIPTOR, e->n, knob));
}

/* The first configuration that becomes a plan and needs little enough scratch. */
static sh_rc choose(struct sh_cudnn_plan *p, const desc *config, int64_t n)
{
    sh_rc rc = sh_fail(SH_E_BUG, "cuDNN has no kernel for this attention");
    for (int64_t i = 0; i < n && i < CONFIGS; i++) {
        int64_t count = 0;
        rc = MAKE(p, EXECUTION_PLAN, "a plan", &p->plan, ONE_DESC(EXECUTION_PLAN_ENGINE_CONFIG, config[i]),
                  ATTRIBUTE(EXECUTION_PLAN_HANDLE, HANDLE, 1, handle ? &handle : NULL));
        if (rc != SH_OK)
            continue;
        SH_TRY(check(dnn.BackendGetAttribute(p->plan, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, CUDNN_TYPE_INT64, 1,
                                             &count, &p->bytes),
                     "a plan"));
        if (p->bytes <= p->shape.most_bytes) {
            p->config = config[i];
            sh_error_clear(); /* drop the errors of earlier configurations, and of finding none */
            return SH_OK;
        }
        rc = sh_fail(SH_E_BUG, "cuDNN needs %lld bytes of scratch for attention, but only %lld are available",
                     (long long)p->bytes, (long long)p->shape.most_bytes);
    }
    return rc;
}

/* One number of a descriptor that cuDNN has filled in; -1 if it has none. */
static int64_t number_of(desc d, cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type)
{
    int64_t count = 0, value = 0; /* a knob's type is an int */
    cudnnStatus_t status = dnn.BackendGetAttribute(d, name, type, 1, &count, &value);
    return status == CUDNN_STATUS_SUCCESS && count == 1 ? value : -1;
}

/* Which kernel was taken, for the log: cuDNN's second choice may be several times slower than its first. */
static sh_rc write_name(struct sh_cudnn_plan *p)
{
    desc engine, knob[KNOBS];
    int64_t n = 0;
    SH_TRY(add_empty(p, CUDNN_BACKEND_ENGINE_DESCRIPTOR, "the kernel of a plan", &engine));
    for (int i = 0; i < KNOBS; i++)
        SH_TRY(add_empty(p, CUDNN_BACKEND_KNOB_CHOICE_DESCRIPTOR, "a knob of a plan", &knob[i]));
    SH_TRY(check(
        dnn.BackendGetAttribute(p->config, CUDNN_ATTR_ENGINECFG_ENGINE, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &n, &engine),
        "the kernel of a plan"));
    int at = snprintf(p->name, sizeof p->name, "engine %lld, knobs",
                      (long long)number_of(engine, CUDNN_ATTR_ENGINE_GLOBAL_INDEX, CUDNN_TYPE_INT64));
    SH_TRY(check(dnn.BackendGetAttribute(p->config, CUDNN_ATTR_ENGINECFG_KNOB_CHOICES, CUDNN_TYPE_BACKEND_DESCRIPTOR,
                                         KNOBS, &n, knob),
                 "the knobs of a plan"));
    for (int64_t i = 0; i < n && i < KNOBS && at < (int)sizeof p->name; i++)
        at += snprintf(p->name + at, sizeof p->name - (size_t)at, " %lld=%lld",
                       (long long)number_of(knob[i], CUDNN_ATTR_KNOB_CHOICE_KNOB_TYPE, CUDNN_TYPE_KNOB_TYPE),
                       (long long)number_of(knob[i], CUDNN_ATTR_KNOB_CHOICE_KNOB_VALUE, CUDNN_TYPE_INT64));
    return SH_OK;
}

static sh_rc build(struct sh_cudnn_plan *p, struct sh_cudnn_gpu gpu, const struct sh_cudnn_engine *engine)
{
    desc graph, described, config[CONFIGS];
    int64_t n = 1;
    if (p->shape.seq % sh_cudnn_tile(dnn.GetVersion()) != 0)
        return sh_fail(SH_E_USAGE, "cuDNN before 9.16 needs a multiple of %lld positions",
                       (long long)sh_cudnn_tile(dnn.GetVersion()));
    SH_TRY(build_graph(p, &graph));
    SH_TRY(describe(p, gpu, &described));
    if (engine && engine->index >= 0)
        SH_TRY(demand(p, graph, described, engine, config));
    else
        SH_TRY(ask(p, graph, described, config, &n));
    SH_TRY(choose(p, config, n));
    return write_name(p);
}

sh_rc sh_cudnn_plan_create(const struct sh_cudnn_shape *shape, struct sh_cudnn_gpu gpu,
                           const struct sh_cudnn_engine *engine, struct sh_cudnn_plan **out)
{
    struct sh_cudnn_plan *p = calloc(1, sizeof *p);
    *out = NULL;
    if (!p)
        return sh_fail(SH_E_MEMORY, "no memory for a plan of cuDNN");
    p->shape = *shape;
    sh_rc rc = build(p, gpu, engine);
    if (rc != SH_OK) {
        sh_cudnn_plan_destroy(p);
        return rc;
    }
    *out = p;
    return SH_OK;
}

int64_t sh_cudnn_plan_bytes(const struct sh_cudnn_plan *p)
{
    return p->bytes;
}

const char *sh_cudnn_plan_name(const struct sh_cudnn_plan *p)
{
    return p->name;
}

/* The list of addresses is small and made again for each run, since addresses change. */
sh_rc sh_cudnn_plan_run(struct sh_cudnn_plan *p, void *const *at, int n, void *scratch, void *stream)
{
    void *address[T_COUNT];
    int64_t uid[T_COUNT], bound = 0;
    desc pack;
    for (int i = 1; i < n && i < T_COUNT; i++)
        if (at[i]) {
            uid[bound] = i;
            address[bound++] = at[i];
        }
    const struct attribute attribute[] = {ATTRIBUTE(VARIANT_PACK_UNIQUE_IDS, INT64, bound, uid),
                                          ATTRIBUTE(VARIANT_PACK_DATA_POINTERS, VOID_PTR, bound, address),
                                          ATTRIBUTE(VARIANT_PACK_WORKSPACE, VOID_PTR, 1, &scratch)};
    SH_TRY(check(dnn.SetStream(handle, stream), "use of the stream"));
    SH_TRY(check(dnn.BackendCreateDescriptor(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR, &pack), "a list of operands"));
    cudnnStatus_t status = CUDNN_STATUS_SUCCESS;
    for (int i = 0; i < 3 && status == CUDNN_STATUS_SUCCESS; i++)
        status =
            dnn.BackendSetAttribute(pack, attribute[i].name, attribute[i].type, attribute[i].count, attribute[i].value);
    if (status == CUDNN_STATUS_SUCCESS)
        status = dnn.BackendFinalize(pack);
    if (status == CUDNN_STATUS_SUCCESS)
        status = dnn.BackendExecute(handle, p->plan, pack);
    dnn.BackendDestroyDescriptor(pack);
    return check(status, "attention run");
}
