# SHERD_BLAS: find a CBLAS for float32 matrix products: --with-blas=auto|openblas|blis|cblas|DIR.
#
# auto takes the first that links and tries the fast libraries before the plain interface (which may belong to the slow
# reference library). DIR is a folder with include/cblas.h and lib/libopenblas, libblis, libcblas or libblas.
AC_DEFUN([SHERD_BLAS], [
AC_ARG_WITH([blas], [AS_HELP_STRING([--with-blas=auto|openblas|blis|cblas|DIR],
    [which library provides cblas_sgemm @<:@auto@:>@])], [], [with_blas=auto])
have_blas=no
AS_CASE([$with_blas],
    [auto|yes|/*], [sherd_blas_names="openblas blis cblas blas"],
    [openblas|blis], [sherd_blas_names=$with_blas],
    [cblas], [sherd_blas_names="cblas blas"],
    [AC_MSG_ERROR([--with-blas=$with_blas: say auto, openblas, blis, cblas or a folder that begins with /])])
for sherd_blas in $sherd_blas_names; do
    AS_IF([test $have_blas = no], [SHERD_BLAS_TRY])
done
AS_IF([test $have_blas = no], [
    SHERD_MISSING([no CBLAS found (tried: $sherd_blas_names)], [libopenblas-dev], [openblas-devel], [openblas],
        [--with-blas=DIR, where DIR has include/cblas.h])])
SHERD_RESULT([BLAS], [$sherd_blas_name $sherd_blas_version], [$sherd_where])
AC_SUBST([blas_CPPFLAGS])
AC_SUBST([blas_LIBS])
])

AC_DEFUN([SHERD_BLAS_TRY], [
blas_CPPFLAGS=
blas_LIBS=-l$sherd_blas
sherd_blas_version=
sherd_where="compiler's paths"
AS_CASE([$with_blas], [/*], [
        SHERD_PREFIX([blas], [$with_blas], [-l$sherd_blas], [cblas.h])
        sherd_where=$with_blas],
    [AS_IF([$PKG_CONFIG --exists $sherd_blas 2>/dev/null], [
        blas_CPPFLAGS=`$PKG_CONFIG --cflags $sherd_blas`
        blas_LIBS=`$PKG_CONFIG --libs $sherd_blas`
        sherd_blas_version=`$PKG_CONFIG --modversion $sherd_blas`
        sherd_where="pkg-config $sherd_blas"])])
AC_MSG_CHECKING([for cblas_sgemm in $sherd_blas ($sherd_where)])
SHERD_TRY_LINK([$blas_CPPFLAGS], [$blas_LIBS], [#include <cblas.h>],
    [float x = 1; cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, 1, 1, 1, x, &x, 1, &x, 1, 0, &x, 1);],
    [have_blas=yes
    sherd_blas_name=$sherd_blas])
AC_MSG_RESULT([$have_blas])
])
