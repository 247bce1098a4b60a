# Helpers that the other macros share.

# SHERD_TRY_LINK(CPPFLAGS, LIBS, PROLOGUE, BODY, IF-YES, IF-NO)
# Link a program with these flags, and restore the old flags afterwards.
AC_DEFUN([SHERD_TRY_LINK], [
sherd_keep_CPPFLAGS=$CPPFLAGS
sherd_keep_LIBS=$LIBS
CPPFLAGS="$CPPFLAGS $1"
LIBS="$2 $LIBS"
AC_LINK_IFELSE([AC_LANG_PROGRAM([$3], [$4])], [sherd_linked=yes], [sherd_linked=no])
CPPFLAGS=$sherd_keep_CPPFLAGS
LIBS=$sherd_keep_LIBS
AS_IF([test "$sherd_linked" = yes], [$5], [$6])
])

# SHERD_MACRO_VALUE(VARIABLE, CPPFLAGS, HEADER, MACROS)
# What macros of a header expand to, joined with dots: "4 1 4" becomes 4.1.4. Empty if there is no such header.
# Only the preprocessor runs, so this also works when cross-compiling.
AC_DEFUN([SHERD_MACRO_VALUE], [
cat > conftest.c <<SHERD_EOF
[#]include <$3>
sherd_value $4
SHERD_EOF
$1=`$CPP -P $CPPFLAGS $2 conftest.c 2>/dev/null | sed -n 's/^sherd_value//p' | tr -d '"' |
    sed -e 's/^  *//' -e 's/  *$//' -e 's/\([[0-9]]\)  *\([[0-9]]\)/\1.\2/g' -e 's/\([[0-9]]\)  *\([[0-9]]\)/\1.\2/g'`
rm -f conftest.c
])

# SHERD_RESULT(NAME, WHAT, WHERE)
# One row of the table at the end of configure.
AC_DEFUN([SHERD_RESULT], [
sherd_row=`printf '  %-10s %-26s %s' "$1" "$2" "$3"`
sherd_results="$sherd_results
$sherd_row"
])

# SHERD_MISSING(WHAT, DEBIAN, RHEL, SPACK, HOW)
# End configure with an error: what is missing, what the package is called, which option says where it is.
AC_DEFUN([SHERD_MISSING], [AC_MSG_ERROR([$1.
  Debian, Ubuntu:  apt-get install $2
  RHEL, Fedora:    dnf install $3
  Spack:           spack install $4
  elsewhere:       $5])])

# SHERD_FLAGS(VARIABLE, FLAGS)
# Append the flags that the compiler accepts without a warning. Each is tried together with the ones before it, because
# some have an effect only together.
AC_DEFUN([SHERD_FLAGS], [
for sherd_flag in $2; do
    AC_MSG_CHECKING([whether $CC takes $sherd_flag])
    sherd_keep_CFLAGS=$CFLAGS
    CFLAGS="$CFLAGS $$1 $sherd_flag -Werror"
    AC_COMPILE_IFELSE([AC_LANG_PROGRAM], [sherd_takes=yes], [sherd_takes=no])
    CFLAGS=$sherd_keep_CFLAGS
    AC_MSG_RESULT([$sherd_takes])
    AS_IF([test $sherd_takes = yes], [$1="$$1 $sherd_flag"])
done
AC_SUBST([$1])
])
