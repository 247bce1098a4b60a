/* Attention by cuDNN, through its graph interface in plain C: it is given a graph of products, masks and sums
 * (cudnn_graph.c), which it matches to one of its fused kernels. A plan for each shape is made before the first step,
 * which takes a second or two, and kept. Both directions are deterministic, except for a backward with
 * attr->attn.any_order. NVIDIA's figures for an H200, causal, 64 query heads to 8, D = 128, T = 8192: 644 TFLOP/s
 * forward, 541 backward (in any order). Not measured by us on a GPU. */
#include "kernels/cuda/attention_cudnn.h"

#include "kernels/cuda/attention.h"
#include "kernels/cuda/cudnn_graph.h"
#include "kernels/cuda/operand.h"
#include "kernels/cuda/work_product.h"
#include "src/base/library.h"
#include "src/base/log.h"

#include <math.h>
#include <stddef.h>
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

typedef cudnnBackendDescriptor_t desc;

/* Descriptors refer to one another, so those of a plan live as long as the plan. */
enum { MOST_DESCRIPTORS = 160, CONFIGS = 8 };
/* A plan, and all descriptors it is made of; they are destroyed together. */
struct plan {
    struct sh_cudnn_shape shape;
    bool failed; /* there is no plan for this shape */
    desc plan;
    int64_t bytes;
    desc made[MOST_DESCRIPTORS], tensor[T_COUNT], ops[64];
    int n_made, n_ops;
};

/* A layer has two shapes, and a model has one kind of layer; evaluation may add two more. */
enum { PLANS = 16 };
/* One process, one device: cuDNN's handle and plans are kept until the process ends. */
static struct {
    bool loaded, gone; /* gone: an attempt to load it failed */
    cudnnHandle_t handle;
    struct plan plan[PLANS];
    int n;
} state;

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

/* Loaded at run time, so that a sherd built with cuDNN's headers starts without the library. Versions before 9.8 lack
 * some of the operations used. */
sh_rc sh_cudnn_load(void)
{
    static const char *const files[] = {"libcudnn.so.9", NULL};
    static const struct sh_library_symbol symbols[] = {CALLS(SYMBOL){NULL, NULL}};
    enum { OLDEST = 90800 };
    if (state.loaded)
        return SH_OK;
    SH_TRY(sh_library_load(files, symbols));
    if (dnn.GetVersion() < OLDEST)
        return sh_fail(SH_E_USAGE, "libcudnn.so.9 is version %zu; 9.8 or newer is needed", dnn.GetVersion());
    state.loaded = true;
    return SH_OK;
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
static sh_rc make(struct plan *p, cudnnBackendDescriptorType_t type, const char *what, int n, const struct attribute *a,
                  desc *out)
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

/* Destroy descriptors in the reverse order of their creation, because later ones refer to earlier ones. */
static void forget(struct plan *p)
{
    while (p->n_made > 0)
        dnn.BackendDestroyDescriptor(p->made[--p->n_made]);
    p->plan = NULL;
}

/* T_LAST_NUMBER is the last tensor with an address; those after it exist only inside the kernel ("virtual"). */
static sh_rc add_tensor(struct plan *p, const struct sh_cudnn_tensor_row *row)
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
static sh_rc add_matmul(struct plan *p, const struct sh_cudnn_node *n, desc *op)
{
    cudnnDataType_t f32 = CUDNN_DATA_FLOAT;
    desc how;
    SH_TRY(MAKE(p, MATMUL, "a product", &how, ATTRIBUTE(MATMUL_COMP_TYPE, DATA_TYPE, 1, &f32)));
    return MAKE(p, OPERATION_MATMUL, "a product", op, ONE_DESC(OPERATION_MATMUL_ADESC, p->tensor[n->x]),
                ONE_DESC(OPERATION_MATMUL_BDESC, p->tensor[n->b]), ONE_DESC(OPERATION_MATMUL_CDESC, p->tensor[n->y]),
                ONE_DESC(OPERATION_MATMUL_DESC, how));
}

static sh_rc add_pointwise(struct plan *p, const struct sh_cudnn_node *n, desc *op)
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
static sh_rc add_reduce(struct plan *p, const struct sh_cudnn_node *n, desc *op)
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
static sh_rc add_reshape(struct plan *p, const struct sh_cudnn_node *n, desc *op)
{
    return MAKE(p, OPERATION_RESHAPE, "a transposition", op, ONE_DESC(OPERATION_RESHAPE_XDESC, p->tensor[n->x]),
                ONE_DESC(OPERATION_RESHAPE_YDESC, p->tensor[n->y]));
}

/* Build the graph in cuDNN's descriptors from the tables of cudnn_graph.c. Nodes that do not apply to the shape are
 * left out. */
static sh_rc build_graph(struct plan *p, desc *graph)
{
    static sh_rc (*const add[])(struct plan *, const struct sh_cudnn_node *, desc *) = {
        [N_MATMUL] = add_matmul, [N_POINTWISE] = add_pointwise, [N_REDUCE] = add_reduce, [N_RESHAPE] = add_reshape};
    const struct sh_cudnn_graph *g = p->shape.backward ? &sh_cudnn_backward : &sh_cudnn_forward;

    for (int i = 0; i < g->n_tensors; i++)
        SH_TRY(add_tensor(p, &g->tensors[i]));
    for (int i = 0; i < g->n_nodes; i++)
        if (sh_cudnn_takes_part(&g->nodes[i], &p->shape))
            SH_TRY(add[g->nodes[i].kind](p, &g->nodes[i], &p->ops[p->n_ops++]));
    return MAKE(p, OPERATIONGRAPH, "the graph of attention", graph,
                ATTRIBUTE(OPERATIONGRAPH_OPS, BACKEND_DESCRIPTOR, p->n_ops, p->ops),
                ATTRIBUTE(OPERATIONGRAPH_HANDLE, HANDLE, 1, state.handle ? &state.handle : NULL));
}

/* The configurations with which cuDNN would run the graph, best first. */
static sh_rc ask(struct plan *p, desc graph, const char *gpu, desc config[CONFIGS], int64_t *n)
{
    cudnnBackendHeurMode_t mode = CUDNN_HEUR_MODE_A;
    desc heuristics, described = NULL;
    if (gpu)
        SH_TRY(MAKE(p, DEVICEPROP, "a GPU from its description", &described,
                    ATTRIBUTE(DEVICEPROP_JSON_REPRESENTATION, CHAR, (int64_t)strlen(gpu), gpu)));
    SH_TRY(MAKE(p, ENGINEHEUR, "a choice of kernels", &heuristics, ONE_DESC(ENGINEHEUR_OPERATION_GRAPH, graph),
                ATTRIBUTE(ENGINEHEUR_MODE, HEUR_MODE, 1, &mode),
                ATTRIBUTE(ENGINEHEUR_DEVICEPROP, BACKEND_DESCRIPTOR, 1, described ? &described : NULL)));
    for (int i = 0; i < CONFIGS; i++) {
        SH_TRY(check(dnn.BackendCreateDescriptor(CUDNN_BACKEND_ENGINECFG_DESCRIPTOR, &config[i]), "a choice"));
        p->made[p->n_made++] = config[i];
    }
    return check(dnn.BackendGetAttribute(heuristics, CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_TYPE_BACKEND_DESCRIPTOR,
                                         CONFIGS, n, config),
                 "a choice of kernels");
}

/* The first configuration that becomes a plan and needs little enough scratch. */
static sh_rc choose(struct plan *p, const desc config[CONFIGS], int64_t n)
{
    sh_rc rc = sh_fail(SH_E_BUG, "cuDNN has no kernel for this attention");
    for (int64_t i = 0; i < n && i < CONFIGS; i++) {
        int64_t count = 0;
        rc = MAKE(p, EXECUTION_PLAN, "a plan", &p->plan, ONE_DESC(EXECUTION_PLAN_ENGINE_CONFIG, config[i]),
                  ATTRIBUTE(EXECUTION_PLAN_HANDLE, HANDLE, 1, state.handle ? &state.handle : NULL));
        if (rc != SH_OK)
            continue;
        SH_TRY(check(dnn.BackendGetAttribute(p->plan, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, CUDNN_TYPE_INT64, 1,
                                             &count, &p->bytes),
                     "a plan"));
        if (p->bytes <= p->shape.most_bytes) {
            sh_error_clear(); /* drop the errors of earlier configurations, and of finding none */
            return SH_OK;
        }
        rc = sh_fail(SH_E_BUG, "cuDNN needs %lld bytes of scratch for attention, but only %lld are available",
                     (long long)p->bytes, (long long)p->shape.most_bytes);
    }
    return rc;
}

/* Build everything that a plan needs. `gpu` describes a GPU that is not present; NULL: use the present one. */
static sh_rc build_plan(struct plan *p, const char *gpu)
{
    desc graph, config[CONFIGS];
    int64_t n = 0;
    SH_TRY(build_graph(p, &graph));
    SH_TRY(ask(p, graph, gpu, config, &n));
    return choose(p, config, n);
}

/* What a plan depends on, without addresses. batch 0: cuDNN does not support this call. */
static struct sh_cudnn_shape shape_of(const struct sh_op_call *call)
{
    struct sh_cuda_cudnn_work w = sh_cuda_cudnn_work(call);
    const struct sh_operand *qkv = &call->in[call->kind == SH_OP_ATTENTION ? 0 : 1];
    int64_t heads = call->attr->attn.heads, kv_heads = call->attr->attn.kv_heads;
    /* clang-format off */
    return (struct sh_cudnn_shape){
        .batch = w.batch, .heads = w.kv_heads * (heads / kv_heads), .kv_heads = w.kv_heads,
        .seq = qkv->dim[1], .dim = call->attr->attn.head_dim, .all_heads = heads, .all_kv_heads = kv_heads,
        .most_bytes = w.plan, .backward = call->kind == SH_OP_ATTENTION_BWD,
        .any_order = call->kind == SH_OP_ATTENTION_BWD && call->attr->attn.any_order,
    };
    /* clang-format on */
}

/* For tests without a GPU: whether cuDNN would have a kernel, and how much scratch it would need. */
sh_rc sh_cudnn_try_plan(const struct sh_op_call *call, const char *gpu, int64_t *bytes, int64_t *most)
{
    struct plan p = {.shape = shape_of(call)};
    if (p.shape.batch == 0)
        return sh_fail(SH_E_USAGE, "cuDNN does not support this attention");
    SH_TRY(sh_cudnn_load());
    sh_rc rc = build_plan(&p, gpu);
    forget(&p);
    SH_TRY(rc);
    *bytes = p.bytes;
    *most = p.shape.most_bytes;
    return SH_OK;
}

static sh_rc open_cudnn(void)
{
    SH_TRY(sh_cudnn_load());
    return state.handle ? SH_OK : check(dnn.Create(&state.handle), "a start on this GPU");
}

/* At most PLANS rows, so a linear search. */
static struct plan *find(const struct sh_cudnn_shape *shape)
{
    for (int i = 0; i < state.n; i++)
        if (memcmp(&state.plan[i].shape, shape, sizeof *shape) == 0)
            return &state.plan[i];
    return NULL;
}

/* If cuDNN is missing or has no plan, this is logged once and other kernels do the work: slower, but just as
 * deterministic. */
sh_rc sh_attention_cudnn_prepare(const struct sh_op_call *call)
{
    struct sh_cudnn_shape shape = shape_of(call);
    if (shape.batch == 0 || state.gone || find(&shape))
        return SH_OK;
    if (open_cudnn() != SH_OK) {
        state.gone = true;
        sh_log_info("attention: using Sherd's own kernels, cuDNN is not available (%s)", sh_error_text());
        sh_error_clear();
        return SH_OK;
    }
    if (state.n == PLANS)
        return sh_fail(SH_E_BUG, "cuDNN: more than %d shapes of attention", PLANS);
    struct plan *p = &state.plan[state.n++];
    /* A failed plan keeps its row, so it is not tried again at each call. */
    *p = (struct plan){.shape = shape};
    if (build_plan(p, NULL) == SH_OK)
        return SH_OK;
    p->failed = true;
    sh_log_info("%s, T = %lld, D = %lld: Sherd's own kernels (%s)", sh_op_info(call->kind)->name, (long long)shape.seq,
                (long long)shape.dim, sh_error_text());
    sh_error_clear();
    forget(p);
    return SH_OK;
}

/* NULL: other kernels compute this call. */
static struct plan *plan_of(const struct sh_op_call *call)
{
    struct sh_cudnn_shape shape = shape_of(call);
    struct plan *p = shape.batch ? find(&shape) : NULL;
    return p && !p->failed ? p : NULL;
}

/* Asked at each call; prepare() has built the plan before the first step. */
bool sh_attention_cudnn_takes(const struct sh_op_call *call)
{
    return plan_of(call) != NULL;
}

/* Addresses for one piece of a call: sequences from b, key-value heads from k, and their query heads. */
static void bind(const struct sh_op_call *call, const struct sh_cudnn_shape *s, int64_t b, int64_t k, char *sums,
                 char *dq_sums, void *at[T_LAST_NUMBER + 1])
{
    struct sh_attention a = sh_attention_of(call);
    int64_t h = k * (a.heads / a.kv_heads), row = (a.heads + 2 * a.kv_heads) * s->dim, out = a.heads * s->dim, bf16 = 2;
    int64_t q_at = (b * s->seq * row + h * s->dim) * bf16, k_at = (b * s->seq * row + (a.heads + k) * s->dim) * bf16;
    int64_t v_at = k_at + a.kv_heads * s->dim * bf16, o_at = (b * s->seq * out + h * s->dim) * bf16;
    char *qkv = (char *)(uintptr_t)a.qkv, *dout = (char *)(uintptr_t)a.dout, *dqkv = a.dqkv;

    at[T_Q] = qkv + q_at, at[T_K] = qkv + k_at, at[T_V] = qkv + v_at, at[T_O] = (char *)a.o + o_at;
    at[T_STATS] = a.lse + (b * a.heads + h) * s->seq;
    if (!s->backward)
        return;
    at[T_DO] = dout + o_at, at[T_DQ] = dqkv + q_at, at[T_DK] = dqkv + k_at, at[T_DV] = dqkv + v_at;
    at[T_SUMS] = sums;
    at[T_DQ_SUMS] = s->any_order ? dq_sums : NULL;
}

/* A list of addresses for the plan's tensors. It is small and made again for each launch, since addresses change with
 * b and k. */
static sh_rc execute(struct plan *p, void *const at[T_LAST_NUMBER + 1], void *scratch)
{
    void *address[T_LAST_NUMBER];
    int64_t uid[T_LAST_NUMBER], n = 0;
    desc pack;
    for (int64_t i = 1; i <= T_LAST_NUMBER; i++)
        if (at[i]) {
            uid[n] = i;
            address[n++] = at[i];
        }
    const struct attribute attribute[] = {ATTRIBUTE(VARIANT_PACK_UNIQUE_IDS, INT64, n, uid),
                                          ATTRIBUTE(VARIANT_PACK_DATA_POINTERS, VOID_PTR, n, address),
                                          ATTRIBUTE(VARIANT_PACK_WORKSPACE, VOID_PTR, 1, &scratch)};
    SH_TRY(check(dnn.BackendCreateDescriptor(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR, &pack), "a list of operands"));
    cudnnStatus_t status = CUDNN_STATUS_SUCCESS;
    for (int i = 0; i < 3 && status == CUDNN_STATUS_SUCCESS; i++)
        status =
            dnn.BackendSetAttribute(pack, attribute[i].name, attribute[i].type, attribute[i].count, attribute[i].value);
    if (status == CUDNN_STATUS_SUCCESS)
        status = dnn.BackendFinalize(pack);
    if (status == CUDNN_STATUS_SUCCESS)
        status = dnn.BackendExecute(state.handle, p->plan, pack);
    dnn.BackendDestroyDescriptor(pack);
    return check(status, "attention run");
}

/* Run piece by piece if the scratch cannot hold the whole backward: w.batch sequences and w.kv_heads heads at a
 * time. */
sh_rc sh_attention_cudnn(const struct sh_op_call *call)
{
    struct sh_cuda_cudnn_work w = sh_cuda_cudnn_work(call);
    struct plan *p = plan_of(call);
    SH_REQUIRE(p && call->work_bytes >= w.bytes);
    float scale = call->attr->attn.scale, minus_inf = -INFINITY, one = 1;
    /* Scratch starts at a multiple of 256: row sums first, then dq in f32, then the plan's workspace. */
    char *sums = (char *)call->work + (-(uintptr_t)call->work & 255), *dq_sums = sums + w.sums;
    int64_t batch = call->in[p->shape.backward ? 1 : 0].dim[0];

    SH_TRY(check(dnn.SetStream(state.handle, call->queue), "use of the stream"));
    for (int64_t b = 0; b < batch; b += w.batch)
        for (int64_t k = 0; k < call->attr->attn.kv_heads; k += w.kv_heads) {
            void *at[T_LAST_NUMBER + 1] = {
                [T_SCALE] = &scale, [T_MINUS_INF] = &minus_inf, [T_ONE] = p->shape.backward ? &one : NULL};
            bind(call, &p->shape, b, k, sums, dq_sums, at);
            SH_TRY(execute(p, at, dq_sums + w.dq_sums));
        }
    return SH_OK;
}
