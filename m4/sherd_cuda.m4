# SHERD_CUDA: find the CUDA toolkit, and the headers of NCCL and cuDNN.
#
# --with-cuda=check|yes|no|DIR builds kernels for real GPUs. --with-cuda=emulated builds them for the CPU, on doubles of
# the CUDA runtime, cuBLASLt and NCCL that check the order of all operations (tests/gpu/emulated): a test of the whole
# trainer that needs no GPU, only the headers. NCCL, cuBLASLt and cuDNN are loaded at run time, so that one program also
# starts on hosts without them; only their headers are needed here. The CUDA runtime is linked statically, for the same
# reason.
#
# Sets cuda_CPPFLAGS, cuda_LIBS, NVCC, NVCC_FLAGS; the conditionals HAVE_CUDA (the program has a cuda device),
# CUDA_EMULATED (it is the emulated one), HAVE_CUDA_HEADERS, HAVE_NCCL, HAVE_CUDNN, HAVE_CXX, HAVE_TSAN; and defines of
# the same names.
AC_DEFUN([SHERD_CUDA], [
AC_ARG_WITH([cuda], [AS_HELP_STRING([--with-cuda=check|yes|no|DIR|emulated],
    [CUDA toolkit for GPUs; emulated: GPUs are emulated on the CPU, for tests @<:@check@:>@])], [], [with_cuda=check])
AC_ARG_VAR([NVCC], [CUDA compiler])
AC_ARG_VAR([NVCCFLAGS], [flags for the CUDA compiler])
AS_CASE([$with_cuda], [check|yes|no|emulated|/*], [],
    [AC_MSG_ERROR([--with-cuda=$with_cuda: say check, yes, no, emulated or a folder that begins with /])])
SHERD_CXX
have_cuda=no
have_cuda_headers=no
cuda_CPPFLAGS=
cuda_LIBS=
sherd_gencode=
sherd_cuda_why=--with-cuda=no
AS_IF([test "$with_cuda" != no], [SHERD_CUDA_HEADERS])
AS_CASE([$with_cuda:$have_cuda_headers],
    [emulated:yes], [SHERD_CUDA_EMULATED],
    [*:yes], [SHERD_CUDA_TOOLKIT])
AS_CASE([$with_cuda:$have_cuda], [check:no|no:no], [], [*:no],
    [AC_MSG_ERROR([--with-cuda=$with_cuda: $sherd_cuda_why; see config.log])])
AS_CASE([$have_cuda:$with_cuda],
    [no:*], [SHERD_RESULT([CUDA], [no], [$sherd_cuda_why])],
    [yes:emulated], [SHERD_RESULT([CUDA], [emulated], [on the CPU, headers in $sherd_cuda_dir])],
    [SHERD_RESULT([CUDA], [$sherd_nvcc_version], [$NVCC, for compute capabilities $sherd_archs])])
SHERD_CUDA_PART([nccl], [NCCL], [#include <nccl.h>],
    [ncclConfig_t c = NCCL_CONFIG_INITIALIZER; c.maxCTAs = 8; return ncclCommSplit(0, 0, 0, 0, &c);],
    [nccl.h], [NCCL_MAJOR NCCL_MINOR NCCL_PATCH], [GPUs communicate through MPI and host memory])
SHERD_CUDA_PART([cudnn], [CUDNN], [#include <cudnn.h>], [cudnnBackendDescriptor_t d = 0; return cudnnBackendFinalize(d) + CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION;],
    [cudnn_version.h], [CUDNN_MAJOR CUDNN_MINOR CUDNN_PATCHLEVEL], [attention uses Sherd's own kernels])
AS_IF([test $have_cuda = yes], [
    AC_DEFINE([HAVE_CUDA], [1], [Define to 1 when the program has a cuda device, a real or an emulated one.])])
AC_DEFINE_UNQUOTED([SHERD_CUDA_ARCHS], ["$sherd_archs"], [Compute capabilities that the kernels were compiled for.])
AC_DEFINE_UNQUOTED([SHERD_CUDA_LIBDIRS], ["$sherd_cuda_libdirs"],
    [Folders to search for cuBLASLt, NCCL and cuDNN if the loader does not find them by itself.])
AC_SUBST([cuda_CPPFLAGS])
AC_SUBST([cuda_LIBS])
AC_SUBST([NVCC_FLAGS], ["$NVCCFLAGS $sherd_gencode"])
AC_SUBST([NVCC_WARN], ["--compiler-options=-Wall"])
AC_SUBST([CXX_WARN], ["-Wall -Wextra"])
AS_IF([test "$enable_werror" = yes], [
    NVCC_WARN="--Werror=all-warnings $NVCC_WARN"
    CXX_WARN="$CXX_WARN -Werror"])
AM_CONDITIONAL([HAVE_CUDA], [test $have_cuda = yes])
AM_CONDITIONAL([CUDA_EMULATED], [test "$have_cuda:$with_cuda" = yes:emulated])
AM_CONDITIONAL([HAVE_CUDA_HEADERS], [test $have_cuda_headers = yes])
])

# The GPUs to compile for: with_cuda_arch as it was given, sherd_cuda_numbers as compute capabilities. Early in
# configure.ac, so that a wrong name is refused before anything is searched for.
AC_DEFUN([SHERD_CUDA_GPUS], [
AC_ARG_WITH([cuda-arch], [AS_HELP_STRING([--with-cuda-arch="a100 h100 b200"],
    [GPUs to compile for, by name (a100, l40s, h100, h200, gh200, b200, gb200, b300, gb300, rtx-pro-6000) or compute
     capability; the highest also as PTX for newer ones @<:@80 90 100@:>@])], [], [with_cuda_arch="80 90 100"])
AC_MSG_CHECKING([compute capabilities to compile for, if there is CUDA])
sherd_cuda_numbers=
for sherd_gpu in `AS_ECHO(["$with_cuda_arch"]) | tr 'A-Z,' 'a-z '`; do
    AS_CASE([$sherd_gpu],
        [a100], [sherd_number=80],
        [l40s], [sherd_number=89],
        [h100|h200|gh200], [sherd_number=90],
        [b200|gb200], [sherd_number=100],
        [b300|gb300], [sherd_number=103],
        [rtx-pro-6000], [sherd_number=120],
        [sherd_number=`AS_ECHO(["$sherd_gpu"]) | sed -n '/^[[0-9]]\{2,3\}[[af]]\{0,1\}$/p'`])
    AS_IF([test -z "$sherd_number"],
        [AC_MSG_ERROR([--with-cuda-arch=$with_cuda_arch: $sherd_gpu is no GPU known here; say a compute capability, such as 90, or a100, l40s, h100, h200, gh200, b200, gb200, b300, gb300 or rtx-pro-6000])])
    sherd_cuda_numbers="$sherd_cuda_numbers $sherd_number"
done
sherd_cuda_numbers=`printf '%s\n' $sherd_cuda_numbers | sort -n | uniq | tr '\n' ' ' | sed 's/ $//'`
AS_IF([test -z "$sherd_cuda_numbers"], [AC_MSG_ERROR([--with-cuda-arch= names no GPU; say one, such as h100])])
AC_MSG_RESULT([$sherd_cuda_numbers])
])

# Find a C++17 compiler of the same kind as CC, so that both use the same sanitizers.
AC_DEFUN([SHERD_CXX], [
have_cxx=no
AS_CASE([$CC], [*clang*], [sherd_cxx=`echo "$CC" | sed 's/clang/clang++/'`], [sherd_cxx=g++])
: ${CXX=$sherd_cxx}
AC_ARG_VAR([CXX], [C++ compiler, for CUDA kernels on the CPU])
AC_MSG_CHECKING([whether $CXX compiles C++17])
echo 'inline int x; int main() { return x; }' > conftest.cc
AS_IF([$CXX -std=c++17 $SAN_CFLAGS conftest.cc -o conftest$EXEEXT >&AS_MESSAGE_LOG_FD 2>&1], [have_cxx=yes])
rm -f conftest.cc conftest$EXEEXT
AC_MSG_RESULT([$have_cxx])
AM_CONDITIONAL([HAVE_CXX], [test $have_cxx = yes])

# Find GCC's ThreadSanitizer, for the race detector of tests/gpu: Clang's (14) misses races between the fibers of two
# blocks. It cannot be combined with other sanitizers.
have_tsan=no
AC_MSG_CHECKING([whether $CXX has ThreadSanitizer])
cat > conftest.cc <<'END'
extern "C" void *__tsan_get_current_fiber(void);
int main() { return __tsan_get_current_fiber() == 0; }
END
AS_CASE([$CC:$SAN_CFLAGS], [*clang*:*|*:?*], [],
    [AS_IF([$CXX -std=c++17 -fsanitize=thread -c conftest.cc -o conftest.$OBJEXT >&AS_MESSAGE_LOG_FD 2>&1 &&
            $CC -fsanitize=thread conftest.$OBJEXT -o conftest$EXEEXT -lstdc++ >&AS_MESSAGE_LOG_FD 2>&1 &&
            ./conftest$EXEEXT >&AS_MESSAGE_LOG_FD 2>&1], [have_tsan=yes])])
rm -f conftest.cc conftest.$OBJEXT conftest$EXEEXT
AC_MSG_RESULT([$have_tsan])
AM_CONDITIONAL([HAVE_TSAN], [test $have_cxx:$have_tsan = yes:yes])
])

# Where the toolkit is (sherd_cuda_dir), and whether its headers are there.
AC_DEFUN([SHERD_CUDA_HEADERS], [
AS_CASE([$with_cuda], [/*], [sherd_cuda_dir=$with_cuda], [sherd_cuda_dir=])
AC_PATH_PROG([NVCC], [nvcc], [],
    [${sherd_cuda_dir:+$sherd_cuda_dir/bin$PATH_SEPARATOR}$PATH$PATH_SEPARATOR/usr/local/cuda/bin])
AS_IF([test -z "$sherd_cuda_dir" && test -n "$NVCC"], [sherd_cuda_dir=`AS_DIRNAME(["$NVCC"])`
    sherd_cuda_dir=`AS_DIRNAME(["$sherd_cuda_dir"])`])
: ${sherd_cuda_dir:=/usr/local/cuda}
AS_IF([test -f "$sherd_cuda_dir/include/cuda_runtime.h"], [cuda_CPPFLAGS="-isystem $sherd_cuda_dir/include"])
sherd_cuda_libdirs=
for sherd_lib in lib64 lib targets/$host_cpu-linux/lib targets/sbsa-linux/lib; do
    AS_IF([test -f "$sherd_cuda_dir/$sherd_lib/libcudart_static.a"], [
        sherd_cuda_libdirs="$sherd_cuda_libdirs$sherd_cuda_dir/$sherd_lib:"])
done
AC_MSG_CHECKING([for cuda_runtime.h and cublasLt.h])
sherd_keep_CPPFLAGS=$CPPFLAGS
CPPFLAGS="$CPPFLAGS $cuda_CPPFLAGS"
AC_COMPILE_IFELSE([AC_LANG_PROGRAM([#include <cuda_runtime.h>
#include <cublasLt.h>], [return cudaSuccess + CUBLAS_STATUS_SUCCESS;])], [have_cuda_headers=yes])
CPPFLAGS=$sherd_keep_CPPFLAGS
AC_MSG_RESULT([$have_cuda_headers])
sherd_cuda_why="cuda_runtime.h or cublasLt.h is missing"
])

AC_DEFUN([SHERD_CUDA_EMULATED], [
AS_IF([test $have_cxx = yes], [
    have_cuda=yes
    sherd_archs=$sherd_cuda_numbers
    cuda_CPPFLAGS="$cuda_CPPFLAGS -DSH_CUDA_EMULATED=1"
    cuda_LIBS=-lstdc++],
    [sherd_cuda_why="no C++17 compiler"])
])

# Find nvcc, and which of the requested GPUs it compiles for.
AC_DEFUN([SHERD_CUDA_TOOLKIT], [
: ${NVCCFLAGS=-O3}
sherd_archs=
sherd_cuda_why="no nvcc"
AS_IF([test -n "$NVCC"], [
    sherd_nvcc_version=`$NVCC --version | sed -n 's/.*release \([[0-9.]]*\).*/\1/p'`
    for sherd_arch in $sherd_cuda_numbers; do
        SHERD_CUDA_ARCH([$sherd_arch])
    done
    # 90a and the like are for one GPU only, and give no PTX that newer GPUs could use.
    AS_CASE([$sherd_highest], [*a|*f|''], [],
        [sherd_gencode="$sherd_gencode -gencode=arch=compute_$sherd_highest,code=compute_$sherd_highest"])
    sherd_cuda_why="$NVCC compiles for none of $with_cuda_arch"
    AS_IF([test -n "$sherd_archs"], [SHERD_CUDA_RUNTIME])])
])

AC_DEFUN([SHERD_CUDA_ARCH], [
AC_MSG_CHECKING([whether $NVCC compiles for sm_$1])
echo '__global__ void f(float *x) { *x = 1; }' > conftest.cu
AS_IF([$NVCC -gencode=arch=compute_$1,code=sm_$1 -c conftest.cu -o conftest.$OBJEXT >&AS_MESSAGE_LOG_FD 2>&1], [
    sherd_gencode="$sherd_gencode -gencode=arch=compute_$1,code=sm_$1"
    sherd_archs="$sherd_archs${sherd_archs:+ }$1"
    sherd_highest=$1
    AC_MSG_RESULT([yes])],
    [AC_MSG_RESULT([no])])
rm -f conftest.cu conftest.$OBJEXT
])

AC_DEFUN([SHERD_CUDA_RUNTIME], [
sherd_cuda_why="libcudart_static.a does not link"
for sherd_lib in `echo "$sherd_cuda_libdirs" | tr ':' ' '` ''; do
    AS_IF([test $have_cuda = no], [
        cuda_LIBS="${sherd_lib:+-L$sherd_lib }-lcudart_static -lstdc++ -ldl -lrt -lpthread"
        SHERD_TRY_LINK([$cuda_CPPFLAGS], [$cuda_LIBS], [#include <cuda_runtime.h>], [cudaDeviceSynchronize();],
            [have_cuda=yes])])
done
AS_IF([test $have_cuda = no], [cuda_LIBS=])
])

# SHERD_CUDA_PART(NAME, MACRO, INCLUDE, BODY, VERSION-HEADER, VERSION-MACROS, WITHOUT): find the headers of a library
# that is loaded at run time.
AC_DEFUN([SHERD_CUDA_PART], [
AC_ARG_WITH([$1], [AS_HELP_STRING([--with-$1=check|yes|no|DIR], [headers of $2, with CUDA only @<:@check@:>@])], [],
    [with_$1=check])
have_$1=no
AS_CASE([$with_$1], [check|yes|no], [],
    [/*], [cuda_CPPFLAGS="-isystem $with_$1/include $cuda_CPPFLAGS"
        sherd_cuda_libdirs="$sherd_cuda_libdirs$with_$1/lib64:$with_$1/lib:"],
    [AC_MSG_ERROR([--with-$1=$with_$1: say check, yes, no or a folder that begins with /])])
AS_IF([test "$with_$1" != no && test $have_cuda_headers = yes], [
    AC_MSG_CHECKING([for the headers of $2])
    sherd_keep_CPPFLAGS=$CPPFLAGS
    CPPFLAGS="$CPPFLAGS $cuda_CPPFLAGS"
    AC_COMPILE_IFELSE([AC_LANG_PROGRAM([$3], [$4])], [have_$1=yes])
    CPPFLAGS=$sherd_keep_CPPFLAGS
    AC_MSG_RESULT([$have_$1])])
AS_CASE([$with_$1:$have_$1], [check:no|no:no], [], [*:no], [
    AC_MSG_ERROR([--with-$1=$with_$1: its headers are missing or too old, or there is no CUDA; see config.log])])
AS_IF([test $have_$1 = yes], [
    AC_DEFINE([HAVE_$2], [1], [Define to 1 when the headers of $2 are there.])
    SHERD_MACRO_VALUE([sherd_version], [$cuda_CPPFLAGS], [$5], [$6])])
AS_IF([test $have_cuda = yes], [
    AS_IF([test $have_$1 = yes], [SHERD_RESULT([$2], [${sherd_version:-found}], [loaded at run time])],
        [SHERD_RESULT([$2], [no], [$7])])])
AM_CONDITIONAL([HAVE_$2], [test $have_$1 = yes])
])
